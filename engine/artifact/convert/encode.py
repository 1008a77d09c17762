"""Reading, encoding and writing every object of a plan, a few chunks of rows at a time (spec/artifact.md §5.1)."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import TypeAlias, Union

import numpy as np

from engine.artifact.convert import recipes
from engine.artifact.convert.importance import ImportanceMatrix, Vector
from engine.artifact.convert.imported import imported_planes
from engine.artifact.convert.planner import Parent
from engine.artifact.convert.recipes import IMPORT, NVFP4, NVFP4_ABSMAX
from engine.artifact.convert.sources import DTYPES, Array, Checkpoint, CheckpointError
from engine.artifact.convert.tensors import Source, cast, read_rows
from engine.artifact.floats import encode_fp8_rows, encode_nvfp4, nvfp4_divisor, swizzle_scales
from engine.artifact.formats import find_format
from engine.artifact.grouped import GroupedPlanes, encode_grouped, to_float32
from engine.artifact.layouts import align_up
from engine.artifact.parameters import Parameter
from engine.artifact.search import encode_search
from engine.artifact.writer import ArtifactWriter
from engine.exits import ArtifactError

Progress = Callable[[int, int], None]
"""Called with the checkpoint bytes read so far and in all."""

Words: TypeAlias = Union["Array", GroupedPlanes, dict[str, "Array"]]
"""Direct words, or the planes of another layout."""

_TILE_ROWS = 128
"""Rows that the scales of an NVFP4 matrix are stored by."""


@dataclass(frozen=True)
class Effort:
    """How much is in memory at a time: `threads` chunks of `rows_per_chunk` rows. The bytes do not depend on it."""

    rows_per_chunk: int
    threads: int


@dataclass(frozen=True)
class Chunk:
    """Rows `[first, last)` of one parameter; they lie in `parent` from row `begin` on."""

    parent: Parent
    member: Parameter
    first: int
    last: int
    begin: int
    importance: Vector | None
    divisor: np.float32 | None


@dataclass(frozen=True)
class Work:
    """What is to be encoded: parents, and where each of their parameters lies in which checkpoint.

    `constants` are parameters that come from no checkpoint.
    """

    checkpoints: Mapping[str, Checkpoint]
    parents: Sequence[Parent]
    sources: Mapping[str, Source]
    importance: ImportanceMatrix
    constants: Mapping[str, "Array"]


def encode_parents(work: Work, writer: ArtifactWriter, effort: Effort, progress: Progress | None) -> None:
    """Write the words of every parent.

    Chunks are read and encoded by threads (numpy lets others run), and written here, in order.

    Raises:
        CheckpointError: the checkpoint ends early, or holds a value that its format cannot.
        ArtifactError, OSError: as the writer's.
    """

    def stored_bytes(parent: Parent, parameter: Parameter, rows: int) -> int:
        elements = rows * prod(parameter.shape[1:])
        if parent.selection.method == IMPORT:
            return int(elements * find_format(parent.selection.format).bits / 8)
        if parameter.name in work.constants:
            return elements * work.constants[parameter.name].itemsize
        source = work.sources[parameter.name]
        return elements * DTYPES[work.checkpoints[source.origin].tensors[source.tensor].dtype].itemsize

    def encode(chunk: Chunk) -> Words:
        try:
            return encode_chunk(work, chunk)
        except CheckpointError:
            raise
        except ArtifactError as error:
            raise CheckpointError(f"{chunk.member.name}, rows {chunk.first} to {chunk.last}: {error}") from None

    total = sum(
        stored_bytes(parent, member, member.shape[0]) for parent in work.parents for member in parent.parameters
    )
    done = 0
    for chunk, words in _in_order(encode, chunks(work, effort.rows_per_chunk), effort.threads):
        _write(writer, chunk, words)
        done += stored_bytes(chunk.parent, chunk.member, chunk.last - chunk.first)
        if progress is not None:
            progress(done, total)


def _in_order(encode: Callable[[Chunk], Words], chunks: Iterator[Chunk], threads: int) -> Iterator[tuple[Chunk, Words]]:
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[tuple[Chunk, Future[Words]]] = deque()
        try:
            for chunk in chunks:
                waiting.append((chunk, pool.submit(encode, chunk)))
                if len(waiting) > threads:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def chunks(work: Work, rows_per_chunk: int) -> Iterator[Chunk]:
    """The chunks of all parents, in the order of their rows."""
    for parent in work.parents:
        offset = 0
        importance = work.importance.of(parent.parameters)
        divisor = _divisor(work, parent, rows_per_chunk)
        for member in parent.parameters:
            rows = member.shape[0]
            # A vector's rows are single numbers: it is one chunk.
            step = rows_per_chunk if len(member.shape) > 1 else rows
            if parent.selection.format == NVFP4:
                step = align_up(step, _TILE_ROWS)
            for first in range(0, rows, step):
                yield Chunk(parent, member, first, min(first + step, rows), offset + first, importance, divisor)
            offset += rows


def _divisor(work: Work, parent: Parent, rows_per_chunk: int) -> np.float32 | None:
    """The divisor of an NVFP4 parent: what its imported words say, else from a first reading of all its weights."""
    if parent.selection.method == IMPORT and parent.selection.divisor is not None:
        return np.float32(parent.selection.divisor)
    if parent.selection.method != NVFP4_ABSMAX:
        return None
    largest = 0.0
    for member in parent.parameters:
        for first in range(0, member.shape[0], rows_per_chunk):
            rows = _read(work, member, first, min(first + rows_per_chunk, member.shape[0]))
            largest = max(largest, float(np.abs(to_float32(rows)).max()))
    return nvfp4_divisor(largest)


def _read(work: Work, member: Parameter, first: int, last: int) -> Array:
    if member.name in work.constants:
        return work.constants[member.name][first:last]
    source = work.sources[member.name]
    return read_rows(work.checkpoints[source.origin], source, member, first, last)


def encode_chunk(work: Work, chunk: Chunk) -> Words:
    """Read and encode one chunk.

    Raises:
        ArtifactError: the format cannot hold a value, or imported words are not legal.
    """
    format, method = chunk.parent.selection.format, chunk.parent.selection.method
    if method == IMPORT:
        source = work.sources[chunk.member.name]
        columns = chunk.member.shape[1]
        planes = imported_planes(work.checkpoints[source.origin], source, format, columns, (chunk.first, chunk.last))
        return _with_divisor(planes, chunk)
    values = _read(work, chunk.member, chunk.first, chunk.last)
    match method:
        case recipes.CAST:
            return cast(values, format)
        case recipes.ABSMAX:
            return encode_grouped(format, values)
        case recipes.SEARCH:
            return encode_search(format, values, chunk.importance, negative_scales=True)
        case recipes.ROW_MAXABS:
            codes, row_scales = encode_fp8_rows(values)
            return {"codes": codes, "scales": row_scales}
        case recipes.NVFP4_ABSMAX:
            assert chunk.divisor is not None
            if (chunk.last - chunk.first) % _TILE_ROWS:
                raise ArtifactError(f"nvfp4 is stored in tiles of {_TILE_ROWS} rows")
            codes, scales = encode_nvfp4(values, chunk.divisor)
            return _with_divisor({"codes": codes, "scales": swizzle_scales(scales)}, chunk)
    raise AssertionError(method)


def _with_divisor(planes: dict[str, Array], chunk: Chunk) -> dict[str, Array]:
    if chunk.divisor is not None and chunk.begin == 0:
        planes["divisor"] = np.array([chunk.divisor])
    return planes


def _write(writer: ArtifactWriter, chunk: Chunk, words: Words) -> None:
    if isinstance(words, GroupedPlanes):
        writer.write_grouped_rows(chunk.parent.id, chunk.begin, words)
    elif isinstance(words, dict):
        writer.write_planes(chunk.parent.id, chunk.begin, chunk.last - chunk.first, words)
    else:
        writer.write_direct(chunk.parent.id, words, chunk.begin * prod(chunk.parent.shape[1:]))


def usable_processors() -> int:
    """Processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
