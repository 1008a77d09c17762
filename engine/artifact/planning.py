"""Where a new artifact's objects and files go: a pure function of sizes (spec/artifact.md §1.4)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.artifact.formats import find_format
from engine.artifact.header import HEADER_BYTES, PAGE
from engine.artifact.layouts import TENSOR_ALIGNMENT, align_up, encoded_size
from engine.exits import ArtifactError

FILE_LIMIT = 32_000_000_000
"""Bytes a file may have before the payload continues in another one."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written, in the one layout of its format."""

    id: str
    shape: tuple[int, ...]
    format: str


@dataclass(frozen=True)
class ResourceSpec:
    """A resource of `size` bytes to be written."""

    id: str
    size: int


@dataclass(frozen=True)
class PlannedObject:
    """A tensor or resource and its place in the logical payload."""

    spec: TensorSpec | ResourceSpec
    offset: int
    bytes: int

    @property
    def id(self) -> str:
        """Object id."""
        return self.spec.id

    def record(self) -> dict[str, Any]:
        """The descriptor of this object in the directory."""
        match self.spec:
            case TensorSpec(id, shape, format):
                return {
                    "id": id,
                    "kind": "tensor",
                    "shape": list(shape),
                    "format": format,
                    "layout": find_format(format).layout,
                    "offset": self.offset,
                    "bytes": self.bytes,
                }
            case ResourceSpec(id):
                return {
                    "id": id,
                    "kind": "resource",
                    "encoding": "raw_bytes_v1",
                    "offset": self.offset,
                    "bytes": self.bytes,
                }


def plan_objects(specs: Iterable[TensorSpec | ResourceSpec]) -> list[PlannedObject]:
    """Place objects one behind the other, tensors at multiples of 256 bytes. The order is the caller's.

    Raises:
        ArtifactError: an id is used twice or is empty, a resource is empty, or a format or shape is not possible.
    """
    plan: list[PlannedObject] = []
    seen: set[str] = set()
    position = 0
    for spec in specs:
        if spec.id in seen or not spec.id or "\0" in spec.id:
            raise ArtifactError(f"object id {spec.id!r} is empty, holds a NUL, or is used twice")
        seen.add(spec.id)
        if isinstance(spec, TensorSpec):
            position = align_up(position, TENSOR_ALIGNMENT)
            try:
                size = encoded_size(spec.format, spec.shape)
            except ArtifactError as error:
                raise ArtifactError(f"object {spec.id!r}: {error}") from None
        elif spec.size <= 0:
            raise ArtifactError(f"resource {spec.id!r} is empty; a resource holds at least one byte")
        else:
            size = spec.size
        plan.append(PlannedObject(spec, position, size))
        position += size
    return plan


def payload_size(plan: list[PlannedObject]) -> int:
    """Bytes of the logical payload of a plan: nothing follows the last object."""
    return plan[-1].offset + plan[-1].bytes if plan else 0


def plan_files(
    directory: Mapping[str, Any], payload_bytes: int, entry_name: str, limit: int = FILE_LIMIT
) -> tuple[bytes, list[dict[str, Any]]]:
    """Split the payload over files and make the directory's JSON text, padded so that the payload starts on a page.

    `directory` is the root object without `files`. Returns the padded text and the file records.

    Raises:
        ArtifactError: the directory alone does not fit in `limit` bytes, or there is no payload.
    """
    if payload_bytes <= 0:
        raise ArtifactError("an artifact holds at least one object")
    files: list[dict[str, Any]] = [{"path": None, "payload_bytes": payload_bytes}]
    reserve = _reserve(len(_directory_text(directory, files)))
    while True:
        files = _split(payload_bytes, HEADER_BYTES + reserve, entry_name, limit)
        text = _directory_text(directory, files)
        if len(text) <= reserve:
            return text.ljust(reserve), files
        reserve = _reserve(len(text))


def _reserve(json_bytes: int) -> int:
    return align_up(HEADER_BYTES + json_bytes, PAGE) - HEADER_BYTES


def _split(payload_bytes: int, start: int, entry_name: str, limit: int) -> list[dict[str, Any]]:
    if start >= limit:
        raise ArtifactError(f"the directory takes {start} bytes, which is not less than the file limit of {limit}")
    if start + payload_bytes <= limit:
        return [{"path": None, "payload_bytes": payload_bytes}]
    first, part = (limit - start) // PAGE * PAGE, (limit - PAGE) // PAGE * PAGE
    if first <= 0 or part <= 0:
        raise ArtifactError(f"a file limit of {limit} bytes leaves no page for payload behind a directory of {start}")
    files: list[dict[str, Any]] = [{"path": None, "payload_bytes": first}]
    remaining = payload_bytes - first
    while remaining:
        size = min(remaining, part)
        files.append({"path": f"{entry_name}.part-{len(files):04d}", "payload_bytes": size})
        remaining -= size
    return files


def _directory_text(directory: Mapping[str, Any], files: list[dict[str, Any]]) -> bytes:
    root: dict[str, Any] = {}
    for name, value in directory.items():
        if name in ("metadata", "provenance"):
            root.setdefault("files", files)
        root[name] = value
    root.setdefault("files", files)
    return json.dumps(root, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
