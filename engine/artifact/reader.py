"""Opening an artifact and reading its parameters and resources (spec/artifact.md §1.3)."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from engine.artifact.config import TextConfig, parse_text_config
from engine.artifact.directory import Binding, Directory, Resource, Tensor, Use, parse_directory
from engine.artifact.header import HEADER_BYTES, parse_entry_header
from engine.artifact.payload import OpenFile, Payload
from engine.artifact.tensor import EncodedTensor, encoded_tensor
from engine.exits import ArtifactError

_T = TypeVar("_T")


@dataclass(frozen=True)
class EncodedPart:
    """Elements `[begin, end)`, in C order, of an encoded tensor."""

    tensor: EncodedTensor
    begin: int
    end: int

    @property
    def rows(self) -> tuple[int, int]:
        """First and one past the last row. ArtifactError when the range does not end on whole rows."""
        columns = self.tensor.geometry.columns
        if self.begin % columns or self.end % columns:
            raise ArtifactError(
                f"elements {self.begin} to {self.end} of {self.tensor.id!r} are not whole rows of {columns}"
            )
        return self.begin // columns, self.end // columns


class Artifact:
    """An open artifact: memory-mapped, and checked piece by piece as pieces are asked for.

    Safe to read from several threads. Every error is an ArtifactError whose message begins with the path of the
    entry file.
    """

    def __init__(self, path: Path, artifact_id: bytes, fingerprint: str, directory: Directory, payload: Payload):
        """Use `Artifact.open`."""
        self.path = path
        self.artifact_id = artifact_id
        self.fingerprint = fingerprint
        self.directory = directory
        self.payload = payload

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the entry file at `path` and check everything that can be checked without reading the payload.

        Continuation files are not opened until something in them is needed.

        Raises:
            ArtifactError: no artifact of version 3, a damaged one, or a file of another length.
        """
        path = Path(path)
        try:
            entry = OpenFile(path)
        except ArtifactError as error:
            raise ArtifactError(f"{path}: {error}") from None
        try:
            header = parse_entry_header(entry.read(0, min(HEADER_BYTES, entry.bytes)), entry.bytes)
            text = entry.read(HEADER_BYTES, header.json_bytes)
            directory = parse_directory(text, path.name)
            fingerprint = hashlib.sha256(header.encode() + text).hexdigest()[:32]
            payload = Payload(entry, header, directory.files)
        except ArtifactError as error:
            entry.close()
            raise ArtifactError(f"{path}: {error}") from None
        return cls(path, header.artifact_id, fingerprint, directory, payload)

    @property
    def name(self) -> str:
        """Public name of the model in the file, else its architecture."""
        return self.directory.name

    @cached_property
    def text_config(self) -> TextConfig:
        """Shape of the text stack. ArtifactError when the configuration is not one this version knows."""
        return self._located(lambda: parse_text_config(self.directory.components["text"].config))

    def resource(self, component: str, role: str) -> bytes:
        """The bytes of a resource, for example `resource("text", "tokenizer.json")`.

        Raises:
            ArtifactError: there is no such component or role, or its bytes cannot be read.
        """
        record = self.directory.components.get(component)
        if record is None:
            known = ", ".join(self.directory.components)
            raise self._error(f"there is no component {component!r} for resource {role!r}; there are: {known}")
        if role not in record.resources:
            known = ", ".join(record.resources) or "none"
            raise self._error(f"component {component!r} has no resource {role!r}; it has: {known}")
        item = self.directory.objects[record.resources[role]]
        assert isinstance(item, Resource)
        return self.resource_object(item.id)

    def resource_object(self, id: str) -> bytes:
        """The bytes of a resource by object id. ArtifactError as `resource`."""
        item = self.directory.objects.get(id)
        if not isinstance(item, Resource):
            raise self._error(f"there is no resource object {id!r}")
        if item.encoding != "raw_bytes_v1":
            raise self._error(f"resource {id!r}: unknown encoding {item.encoding!r}; known: raw_bytes_v1")
        return self.payload.read(item.offset, item.offset + item.bytes).tobytes()

    def parameters(self) -> list[str]:
        """Names of all bound parameters."""
        return list(self.directory.bindings)

    def uses(self, name: str) -> list[Use]:
        """The uses of a parameter, one an input."""
        return self._uses.get(name, [])

    def binding(self, name: str) -> Binding:
        """What a parameter is made of. ArtifactError when it is not bound."""
        if name not in self.directory.bindings:
            raise self._error(f"the artifact has no parameter {name!r}")
        return self.directory.bindings[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Logical shape of a parameter, as far as the file tells.

        A parameter that is one whole tensor has its shape. One made of whole rows of tensors of equal row shape has
        [rows, ...]. Anything else is flat: only the inventory knows better.
        """
        binding = self.binding(name)
        shapes = [self._tensor(part.object).shape for part in binding.parts]
        if binding.whole:
            return shapes[0]
        row = prod(shapes[0][1:])
        if (
            not shapes[0]
            or any(shape[1:] != shapes[0][1:] or not shape for shape in shapes)
            or any(part.begin % row or part.end % row for part in binding.parts)
        ):
            return (binding.elements,)
        return (binding.elements // row, *shapes[0][1:])

    def formats(self, name: str) -> tuple[str, ...]:
        """The format of each part of a parameter, in order."""
        return tuple(self._tensor(part.object).format for part in self.binding(name).parts)

    def tensor(self, id: str) -> EncodedTensor:
        """A tensor by object id, its size and alignment checked.

        Raises:
            ArtifactError: there is no such tensor, or its format, layout, size or alignment is not right.
        """
        return self._located(lambda: encoded_tensor(self._tensor(id), self.payload))

    def encoded(self, name: str) -> tuple[EncodedPart, ...]:
        """The encoded tensors a parameter is made of, and which elements (or `.rows`) of each.

        Raises:
            ArtifactError: as `binding` and `tensor`.
        """
        return self.encoded_binding(self.binding(name))

    def encoded_binding(self, binding: Binding) -> tuple[EncodedPart, ...]:
        """As `encoded`, for a binding that has no name: an auxiliary of a use."""
        return tuple(EncodedPart(self.tensor(part.object), part.begin, part.end) for part in binding.parts)

    def values(self, name: str) -> npt.NDArray[np.generic]:
        """A parameter decoded, in the shape `shape` gives; a new array, the caller's own.

        The type is that of a direct format (bfloat16 from ml_dtypes, float32, int32) and float32 for every other.

        Raises:
            ArtifactError: the parameter is not bound, its bytes cannot be read, or its format cannot be decoded.
        """
        return self.read(self.binding(name)).reshape(self.shape(name))

    def read(self, binding: Binding) -> npt.NDArray[np.generic]:
        """The elements of a binding decoded, flat; a new array. ArtifactError as `values`."""
        parts = self.encoded_binding(binding)
        types = {part.tensor.dtype for part in parts}
        if len(types) > 1 and np.dtype(np.int32) in types:
            raise self._error(f"a parameter mixes integers and floats: {', '.join(p.tensor.id for p in parts)}")
        try:
            out = np.empty(binding.elements, types.pop() if len(types) == 1 else np.float32)
        except (MemoryError, ValueError):
            raise self._error(f"there is no memory for a parameter of {binding.elements} elements") from None
        position = 0
        for part in parts:
            size = part.end - part.begin
            part.tensor.decode_into(out[position : position + size], part.begin, part.end)
            position += size
        return out

    def close(self) -> None:
        """Close the files. Arrays handed out stay valid."""
        self.payload.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _uses(self) -> dict[str, list[Use]]:
        uses: dict[str, list[Use]] = {}
        for use in self.directory.uses:
            uses.setdefault(use.parameter, []).append(use)
        return uses

    def _tensor(self, id: str) -> Tensor:
        item = self.directory.objects.get(id)
        if not isinstance(item, Tensor):
            raise self._error(f"there is no tensor object {id!r}")
        return item

    def _error(self, message: str) -> ArtifactError:
        return ArtifactError(f"{self.path}: {message}")

    def _located(self, action: Callable[[], _T]) -> _T:
        # Checks that know nothing of files leave the path to us.
        try:
            return action()
        except ArtifactError as error:
            raise self._error(str(error)) from None
