"""Reading, encoding and writing every object of a plan, a few chunks of rows at a time (spec/artifact.md §5.1)."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import TypeAlias, Union

from engine.artifact.convert.importance import ImportanceMatrix, Vector
from engine.artifact.convert.planner import Parent
from engine.artifact.convert.recipes import ABSMAX, CAST, SEARCH
from engine.artifact.convert.sources import DTYPES, Array, Checkpoint, CheckpointError
from engine.artifact.convert.tensors import Source, cast, read_rows
from engine.artifact.grouped import GroupedPlanes, encode_grouped
from engine.artifact.parameters import Parameter
from engine.artifact.search import encode_search
from engine.artifact.writer import ArtifactWriter
from engine.exits import ArtifactError

Progress = Callable[[int, int], None]
"""Called with the checkpoint bytes read so far and in all."""

Words: TypeAlias = Union["Array", GroupedPlanes]


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


@dataclass(frozen=True)
class Work:
    """What is to be encoded: parents, and where each of their parameters lies in the checkpoint."""

    checkpoint: Checkpoint
    parents: Sequence[Parent]
    sources: Mapping[str, Source]
    importance: ImportanceMatrix


def encode_parents(work: Work, writer: ArtifactWriter, effort: Effort, progress: Progress | None) -> None:
    """Write the words of every parent.

    Chunks are read and encoded by threads (numpy lets others run), and written here, in order.

    Raises:
        CheckpointError: the checkpoint ends early, or holds a value that its format cannot.
        ArtifactError, OSError: as the writer's.
    """

    def stored_bytes(parameter: Parameter, rows: int) -> int:
        tensor = work.checkpoint.tensors[work.sources[parameter.name].tensor]
        return rows * prod(parameter.shape[1:]) * DTYPES[tensor.dtype].itemsize

    def encode(chunk: Chunk) -> Words:
        values = read_rows(work.checkpoint, work.sources[chunk.member.name], chunk.member, chunk.first, chunk.last)
        try:
            return encode_rows(chunk.parent, values, chunk.importance)
        except ArtifactError as error:
            raise CheckpointError(f"{chunk.member.name}, rows {chunk.first} to {chunk.last}: {error}") from None

    total = sum(stored_bytes(member, member.shape[0]) for parent in work.parents for member in parent.parameters)
    done = 0
    for chunk, words in _in_order(encode, chunks(work.parents, effort.rows_per_chunk, work.importance), effort.threads):
        _write(writer, chunk, words)
        done += stored_bytes(chunk.member, chunk.last - chunk.first)
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


def chunks(parents: Sequence[Parent], rows_per_chunk: int, importance: ImportanceMatrix) -> Iterator[Chunk]:
    """The chunks of all parents, in the order of their rows."""
    for parent in parents:
        offset = 0
        vector = importance.of(parent.parameters)
        for member in parent.parameters:
            rows = member.shape[0]
            # A vector's rows are single numbers: it is one chunk.
            step = rows_per_chunk if len(member.shape) > 1 else rows
            for first in range(0, rows, step):
                yield Chunk(parent, member, first, min(first + step, rows), offset + first, vector)
            offset += rows


def encode_rows(parent: Parent, values: Array, importance: Vector | None) -> Words:
    """Encode `values` as rows of `parent`.

    Raises:
        ArtifactError: the format cannot hold a value.
    """
    format, method = parent.selection.format, parent.selection.method
    if method == CAST:
        return cast(values, format)
    if method == SEARCH:
        return encode_search(format, values, importance, negative_scales=True)
    assert method == ABSMAX
    return encode_grouped(format, values)


def _write(writer: ArtifactWriter, chunk: Chunk, words: Words) -> None:
    if isinstance(words, GroupedPlanes):
        writer.write_grouped_rows(chunk.parent.id, chunk.begin, words)
    else:
        writer.write_direct(chunk.parent.id, words, chunk.begin * prod(chunk.parent.shape[1:]))


def usable_processors() -> int:
    """Processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
