"""Writing artifacts: in any order, in any pieces, published only when whole (spec/artifact.md §1.4)."""

import os
import shutil
import uuid
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from engine.artifact.directory import parse_directory
from engine.artifact.formats import Direct, Format, Grouped, find_format
from engine.artifact.grouped import GroupedPlanes
from engine.artifact.header import PAGE, EntryHeader, PartHeader
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
from engine.exits import ArtifactError, NInferError

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
        header = EntryHeader(len(text), self.artifact_id)
        self.targets = [self.path, *(self.path.parent / record["path"] for record in self.files[1:])]
        self._starts = [header.payload_start] + [PAGE] * (len(self.files) - 1)
        self._ends = list(accumulate(record["payload_bytes"] for record in self.files))
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
        self._temporary: list[Path] = []
        self._descriptors: list[int] = []
        self._committed = False
        self._refuse_existing()
        self._refuse_full_disk()
        try:
            self._create()
            self._write_all(0, 0, header.encode() + text)
            for index in range(1, len(self.files)):
                self._write_all(index, 0, PartHeader(index, self.artifact_id).encode())
        except BaseException:
            self.abort()
            raise

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
        count = planes.scales.shape[0]
        data = {"base": planes.base, "high": planes.high, "scales": planes.scales}
        for plane in self._geometry[id].planes:
            array = np.ascontiguousarray(data[plane.name]).reshape(-1).view(np.uint8)
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
        view = memoryview(data) if isinstance(data, bytes) else data.data
        position = item.offset + offset
        while len(view):
            index = bisect_right(self._ends, position)
            inside = position - (self._ends[index] - self.files[index]["payload_bytes"])
            length = min(len(view), self._ends[index] - position)
            self._write_all(index, self._starts[index] + inside, view[:length])
            view, position = view[length:], position + length

    def commit(self) -> None:
        """Check that every byte was written, and publish: continuation files first, the entry file last.

        Raises:
            ArtifactError: an object has a hole, a file has another size, or a target appeared meanwhile.
            OSError: the disk does not take the last bytes.
        """
        for id, coverage in self._coverage.items():
            if (hole := coverage.first_hole()) is not None:
                raise ArtifactError(f"object {id!r}: byte {hole} of {coverage.size} was never written")
        for index, descriptor in enumerate(self._descriptors):
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
            expected = self._starts[index] + self.files[index]["payload_bytes"]
            if size != expected:
                raise ArtifactError(f"{self.targets[index]}: the file came out with {size} bytes, not {expected}")
        self._refuse_existing()
        published: list[Path] = []
        try:
            for temporary, target in reversed(list(zip(self._temporary, self.targets, strict=True))):
                _publish(temporary, target)
                published.append(target)
            _sync_folder(self.path.parent)
        except BaseException:
            for target in published:
                target.unlink(missing_ok=True)
            raise
        self._committed = True
        self._close()

    def abort(self) -> None:
        """Remove everything that was written. Does nothing after a commit."""
        self._close()
        if not self._committed:
            for path in self._temporary:
                path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _create(self) -> None:
        for index, target in enumerate(self.targets):
            temporary = target.parent / f".{target.name}.{self.artifact_id.hex()[:8]}.{os.getpid()}.tmp"
            self._descriptors.append(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            self._temporary.append(temporary)
            os.ftruncate(self._descriptors[-1], self._starts[index] + self.files[index]["payload_bytes"])

    def _write_all(self, index: int, offset: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptors[index], view, offset)
            view, offset = view[written:], offset + written

    def _refuse_existing(self) -> None:
        for target in self.targets:
            if target.is_symlink() or target.exists():
                raise ArtifactError(f"{target}: exists already and is not overwritten; remove it or name another file")

    def _refuse_full_disk(self) -> None:
        needed = sum(self._starts) + self._ends[-1]
        free = shutil.disk_usage(self.path.parent).free
        if free < needed:
            raise NInferError(f"{self.path}: the artifact takes {needed} bytes; its disk has {free} bytes free")

    def _item(self, id: str) -> PlannedObject:
        if id not in self._plan:
            raise ArtifactError(f"object {id!r} is not planned")
        return self._plan[id]

    def _format(self, id: str) -> Format:
        spec = self._item(id).spec
        if not isinstance(spec, TensorSpec):
            raise ArtifactError(f"object {id!r} is a resource, not a tensor")
        return find_format(spec.format)

    def _close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def _publish(temporary: Path, target: Path) -> None:
    # A hard link never replaces a file, unlike a rename. Some filesystems have none.
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        raise ArtifactError(f"{target}: appeared while the artifact was written and is not overwritten") from None
    except OSError:
        temporary.rename(target)
    else:
        temporary.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
