"""Writing artifacts: in any order, in any pieces, published only when whole (spec/artifact.md §1.4)."""

import uuid
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from engine.artifact.directory import parse_directory
from engine.artifact.file_set import FileSet
from engine.artifact.formats import Direct, Format, Grouped, find_format
from engine.artifact.grouped import GroupedPlanes
from engine.artifact.layouts import Geometry, geometry
from engine.artifact.planning import (
    FILE_LIMIT,
    PlannedObject,
    ResourceSpec,
    TensorSpec,
    payload_size,
    plan_files,
    plan_objects,
)
from engine.exits import ArtifactError

__all__ = [
    "FILE_LIMIT",
    "ArtifactWriter",
    "Coverage",
    "PlannedObject",
    "ResourceSpec",
    "TensorSpec",
    "payload_size",
    "plan_files",
    "plan_objects",
]


class Coverage:
    """Which bytes of an object have been written: sorted ranges that never touch or overlap."""

    def __init__(self, size: int) -> None:
        """Nothing of `size` bytes is written yet."""
        self.size = size
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """Mark bytes `[begin, end)`. ArtifactError when they are outside, or some were written before."""
        if not 0 <= begin < end <= self.size:
            raise ArtifactError(f"bytes {begin} to {end} are not inside an object of {self.size} bytes")
        index = bisect_right(self._begins, begin)
        if (index and self._ends[index - 1] > begin) or (index < len(self._begins) and self._begins[index] < end):
            raise ArtifactError(f"bytes {begin} to {end} overlap bytes that were written before")
        joins_left = index > 0 and self._ends[index - 1] == begin
        joins_right = index < len(self._begins) and self._begins[index] == end
        if joins_left and joins_right:
            self._ends[index - 1] = self._ends.pop(index)
            self._begins.pop(index)
        elif joins_left:
            self._ends[index - 1] = end
        elif joins_right:
            self._begins[index] = begin
        else:
            self._begins.insert(index, begin)
            self._ends.insert(index, end)

    def first_hole(self) -> int | None:
        """Offset of the first byte not written; None when all are."""
        if not self._begins or self._begins[0] > 0:
            return 0
        return self._ends[0] if self._ends[0] < self.size else None


class ArtifactWriter:
    """Writes one artifact as hidden siblings of `path` and gives them their names in `commit`.

    Leaving the `with` block without a commit removes everything that was written.
    """

    def __init__(
        self,
        path: str | Path,
        plan: Sequence[PlannedObject],
        *,
        components: Mapping[str, Any],
        bindings: Mapping[str, Any],
        uses: Sequence[Any] = (),
        metadata: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
        limit: int = FILE_LIMIT,
        artifact_id: bytes | None = None,
    ) -> None:
        """Check the directory, reserve the files and write their headers.

        `components`, `bindings` and `uses` are JSON records as in spec §1.2. `artifact_id` is 16 bytes, by default
        those of a random UUID.

        Raises:
            ArtifactError: the directory is not valid, or a file of a name to be written exists.
            NInferError: the disk has too little room.
            OSError: the folder cannot be written.
        """
        self.path = Path(path)
        self.artifact_id = uuid.uuid4().bytes if artifact_id is None else artifact_id
        if len(self.artifact_id) != 16:
            raise ArtifactError(f"an artifact id has 16 bytes, not {len(self.artifact_id)}")
        directory = {
            "components": components,
            "objects": [item.record() for item in plan],
            "bindings": bindings,
            "uses": list(uses),
            "metadata": metadata or {},
            "provenance": provenance or {},
        }
        text, self.files = plan_files(directory, payload_size(list(plan)), self.path.name, limit)
        parse_directory(text, self.path.name)
        self._plan = {item.id: item for item in plan}
        self._geometry: dict[str, Geometry] = {}
        self._coverage = {item.id: Coverage(item.bytes) for item in plan}
        for item in plan:
            if isinstance(item.spec, TensorSpec):
                planes = geometry(find_format(item.spec.format), item.spec.shape)
                self._geometry[item.id] = planes
                # A file grows by zeros, so padding between planes is right before anything is written.
                for begin, end in planes.fillers():
                    self._coverage[item.id].add(begin, end)
        self._files = FileSet(self.path, text, self.files, self.artifact_id)

    def write_resource(self, id: str, data: bytes) -> None:
        """Write a resource whole. ArtifactError when its size is not the planned one, or it was written before."""
        item = self._item(id)
        if len(data) != item.bytes:
            raise ArtifactError(f"resource {id!r}: {len(data)} bytes given, {item.bytes} planned")
        self.write_span(id, 0, data)

    def write_direct(self, id: str, array: npt.NDArray[np.generic], element_offset: int = 0) -> None:
        """Write elements of a direct tensor, from `element_offset` on, in C order.

        Raises:
            ArtifactError: the array's type is not exactly that of the format (nothing is converted), or
                as `write_span`.
        """
        format = self._format(id)
        if not isinstance(format, Direct) or array.dtype != format.dtype:
            raise ArtifactError(f"object {id!r} is {format.name!r}; an array of {array.dtype} is not written to it")
        words = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.write_span(id, element_offset * format.dtype.itemsize, words)

    def write_grouped_rows(self, id: str, row_begin: int, planes: GroupedPlanes) -> None:
        """Write rows of a grouped integer tensor from `row_begin` on: one span in each plane.

        Raises:
            ArtifactError: the planes are not those of this tensor's width and format, or as `write_span`.
        """
        format = self._format(id)
        if not isinstance(format, Grouped):
            raise ArtifactError(f"object {id!r} is {format.name!r}, not grouped integers")
        data: dict[str, npt.NDArray[np.generic]] = {"base": planes.base, "high": planes.high, "scales": planes.scales}
        self.write_planes(id, row_begin, planes.scales.shape[0], data)

    def write_planes(self, id: str, row_begin: int, count: int, planes: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Write rows `[row_begin, row_begin + count)` of a tensor: one span in each of the named planes.

        A plane that belongs to the whole matrix may be left out, and given with any rows once.

        Raises:
            ArtifactError: the bytes are not those of this tensor's rows, or as `write_span`.
        """
        for plane in self._geometry[id].planes:
            if plane.name not in planes and plane.unit_rows == 0:
                continue
            array = np.ascontiguousarray(planes[plane.name]).reshape(-1).view(np.uint8)
            begin, end = plane.span(row_begin, row_begin + count)
            if array.size != end - begin or end > plane.offset + plane.bytes:
                raise ArtifactError(
                    f"object {id!r}: plane {plane.name!r} has {array.size} bytes for rows {row_begin} to "
                    f"{row_begin + count} of {self._geometry[id].rows}, {plane.unit_bytes} bytes each"
                )
            self.write_span(id, begin, array)

    def write_span(self, id: str, offset: int, data: bytes | npt.NDArray[np.uint8]) -> None:
        """Write bytes of an object at `offset` in it.

        Raises:
            ArtifactError: there is no such object, or bytes are outside it or were written before.
            OSError: the disk does not take them.
        """
        item = self._item(id)
        size = len(data)
        try:
            self._coverage[id].add(offset, offset + size)
        except ArtifactError as error:
            raise ArtifactError(f"object {id!r}: {error}") from None
        self._files.write(item.offset + offset, data if isinstance(data, bytes) else data.data)

    def commit(self) -> None:
        """Check that every byte was written, and publish: continuation files first, the entry file last.

        Raises:
            ArtifactError: an object has a hole, a file has another size, or a target appeared meanwhile.
            OSError: the disk does not take the last bytes.
        """
        for id, coverage in self._coverage.items():
            if (hole := coverage.first_hole()) is not None:
                raise ArtifactError(f"object {id!r}: byte {hole} of {coverage.size} was never written")
        self._files.commit()

    def abort(self) -> None:
        """Remove everything that was written. Does nothing after a commit."""
        self._files.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _item(self, id: str) -> PlannedObject:
        if id not in self._plan:
            raise ArtifactError(f"object {id!r} is not planned")
        return self._plan[id]

    def _format(self, id: str) -> Format:
        spec = self._item(id).spec
        if not isinstance(spec, TensorSpec):
            raise ArtifactError(f"object {id!r} is a resource, not a tensor")
        return find_format(spec.format)
