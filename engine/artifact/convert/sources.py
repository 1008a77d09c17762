"""Reading a Hugging Face checkpoint: one safetensors file, or shards named by an index.

Only headers are read at the start. Rows are read on demand into memory of their own, so that a conversion holds a
chunk at a time and no mapping of a whole shard.
"""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from engine.exits import ArtifactError

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

INDEX_NAME, SINGLE_NAME = "model.safetensors.index.json", "model.safetensors"

DTYPES: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
}
FLOATS = ("BF16", "F16", "F32", "F64")

_MAX_HEADER_BYTES = 100_000_000  # the bound of the safetensors format itself


class CheckpointError(ArtifactError):
    """The source checkpoint is damaged, incomplete, or of a kind this version cannot convert."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies: `offset` is absolute in `path`."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        """Stored size."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


class Checkpoint:
    """The tensors of a checkpoint folder. A context manager; files are opened when first read.

    Safe to read from several threads.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self.tensors = dict(tensors)
        self._files: dict[Path, int] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> "Checkpoint":
        """Read the index and every header of `folder`.

        Raises:
            CheckpointError: no weights, a missing shard, or a header that contradicts its file.
        """
        index, single = folder / INDEX_NAME, folder / SINGLE_NAME
        if index.is_file():
            return cls(_indexed(folder, index))
        if single.is_file():
            return cls(read_header(single))
        raise CheckpointError(f"{folder} has neither {SINGLE_NAME} nor {INDEX_NAME}; name a checkpoint folder")

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def close(self) -> None:
        """Close every open file."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def read(self, name: str, begin: int, end: int) -> Array:
        """Elements `[begin, end)` of the tensor `name` in C order, one-dimensional, in its stored type.

        Raises:
            CheckpointError: the file ends early.
            OSError: the file cannot be read.
        """
        stored = self.tensors[name]
        elements = np.empty(end - begin, DTYPES[stored.dtype])
        target, size = elements.view(np.uint8).data, elements.itemsize
        with self._lock:
            descriptor = self._files.get(stored.path)
            if descriptor is None:
                descriptor = self._files[stored.path] = os.open(stored.path, os.O_RDONLY | os.O_CLOEXEC)
        done = 0
        while done < len(target):
            count = os.preadv(descriptor, [target[done:]], stored.offset + begin * size + done)
            if count == 0:
                raise CheckpointError(f"{stored.path} ends inside tensor {name!r}; the file has changed or is damaged")
            done += count
        return elements


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, checked against its size.

    Raises:
        CheckpointError: the header is not one, or a tensor lies outside the file or over another.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise CheckpointError(f"{path} is not a safetensors file: {size} bytes with a header of {length}")
        text = file.read(length)
    try:
        header = parse_json_object(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is not a safetensors file: its header {error}") from None
    header.pop("__metadata__", None)
    start = 8 + length
    tensors: dict[str, StoredTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, record in header.items():
        begin, end, stored = _stored(path, name, record, start)
        if not 0 <= begin <= end <= size - start:
            raise CheckpointError(f"{path}: tensor {name!r} at bytes [{begin}, {end}) is outside the file")
        tensors[name] = stored
        spans.append((begin, end, name))
    position = 0
    for begin, end, name in sorted(spans):
        if begin < position:
            raise CheckpointError(f"{path}: tensor {name!r} lies over the one before it")
        position = end
    return tensors


def _stored(path: Path, name: str, record: Any, start: int) -> tuple[int, int, StoredTensor]:
    try:
        dtype, shape, (begin, end) = record["dtype"], tuple(record["shape"]), record["data_offsets"]
        whole = all(type(value) is int and value >= 0 for value in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise CheckpointError(f"{path}: the record of tensor {name!r} is {record!r}")
    if dtype not in DTYPES:
        raise CheckpointError(f"{path}: tensor {name!r} is of type {dtype!r}; known: {', '.join(DTYPES)}")
    stored = StoredTensor(path, dtype, shape, start + begin)
    if stored.bytes != end - begin:
        raise CheckpointError(f"{path}: tensor {name!r} has {end - begin} bytes for shape {list(shape)} of {dtype}")
    return begin, end, stored


def _indexed(folder: Path, index: Path) -> dict[str, StoredTensor]:
    try:
        weights = parse_json_object(index.read_bytes())["weight_map"]
        shards = sorted(set(weights.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} does not map tensors to files: {error}") from None
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{index} names a shard {shard!r} that is not a file beside it")
        if not (folder / shard).is_file():
            raise CheckpointError(f"{folder / shard} is missing; {index.name} names it")
        header = read_header(folder / shard)
        for name in (name for name, file in weights.items() if file == shard):
            if name not in header:
                raise CheckpointError(f"{index} says tensor {name!r} is in {shard}, which does not have it")
            tensors[name] = header[name]
    return tensors


def parse_json_object(text: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8 without duplicate members.

    Raises:
        ValueError: it is not; the message continues "X ...".
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise ValueError(f"has the member {twice!r} twice")
        return members

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")
    return value
