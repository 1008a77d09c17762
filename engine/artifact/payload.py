"""The logical payload: one range of bytes over all files of an artifact, mapped when first needed (spec §1.1.3)."""

import mmap
import os
import stat
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from engine.artifact.directory import FileRecord
from engine.artifact.header import HEADER_BYTES, PAGE, EntryHeader, PartHeader, check_part_header
from engine.exits import ArtifactError


class OpenFile:
    """A regular file open for reading, of a length that may not change."""

    def __init__(self, path: Path) -> None:
        """Raises ArtifactError when there is no such file, it cannot be read, or it is not a regular file."""
        self.path = path
        try:
            # Without O_NONBLOCK, opening a named pipe would wait for somebody to write to it.
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ArtifactError(f"cannot be opened: {reason}") from None
        status = os.fstat(self.descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.descriptor)
            raise ArtifactError("is not a regular file")
        self.bytes = status.st_size
        self._map: mmap.mmap | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes; ArtifactError when the file has fewer."""
        try:
            data = os.pread(self.descriptor, size, offset)
            while 0 < len(data) < size and (more := os.pread(self.descriptor, size - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise ArtifactError(f"cannot be read at {offset}: {error.strerror}") from None
        if len(data) != size:
            raise ArtifactError(f"ends at {offset + len(data)}, {size - len(data)} bytes early")
        return data

    def view(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Mapped bytes, read-only, without a copy. The array stays valid after `close`."""
        if os.fstat(self.descriptor).st_size != self.bytes:
            # Touching a page that is gone would kill the process.
            raise ArtifactError("its length changed while it was open")
        if self._map is None:
            try:
                self._map = mmap.mmap(self.descriptor, self.bytes, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise ArtifactError(f"cannot be mapped: {error}") from None
        return np.frombuffer(self._map, np.uint8, size, offset)

    def close(self) -> None:
        """Close the file. The mapping goes with the last array into it."""
        self._map = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Payload:
    """Reads logical bytes. Continuation files are opened and checked when a byte of theirs is first asked for."""

    def __init__(self, entry: OpenFile, header: EntryHeader, files: Sequence[FileRecord]) -> None:
        """Takes over `entry`. Raises ArtifactError when its length is not exactly what the directory says."""
        expected = header.payload_start + files[0].payload_bytes
        if entry.bytes != expected:
            raise ArtifactError(f"the file has {entry.bytes} bytes; its directory says {expected}")
        self.path = entry.path
        self._header = header
        self._records = tuple(files)
        self._ends = list(accumulate(file.payload_bytes for file in files))
        self._open: list[OpenFile | None] = [entry, *([None] * (len(files) - 1))]
        self._lock = Lock()
        self.closed = False

    @property
    def bytes(self) -> int:
        """Bytes of the payload over all files."""
        return self._ends[-1]

    @property
    def start(self) -> int:
        """Where the payload starts in the entry file."""
        return self._header.payload_start

    def read(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Bytes `[begin, end)`, read-only. A range inside one file is a view; one over several is a copy.

        Raises:
            ArtifactError: the range is not inside the payload, or a file of the set is missing or foreign.
        """
        if not 0 <= begin <= end <= self.bytes:
            raise ArtifactError(f"{self.path}: bytes {begin} to {end} are not inside the payload of {self.bytes}")
        index = bisect_right(self._ends, begin)
        if begin == end:
            return np.empty(0, np.uint8)
        pieces = []
        while begin < end:
            file_begin = self._ends[index] - self._records[index].payload_bytes
            stop = min(end, self._ends[index])
            start = self.start if index == 0 else PAGE
            file = self.file(index)
            try:
                pieces.append(file.view(start + begin - file_begin, stop - begin))
            except ArtifactError as error:
                raise self._error(index, error) from None
            begin, index = stop, index + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def file(self, index: int) -> OpenFile:
        """File `index` of the set, opened and checked.

        Raises:
            ArtifactError: it is missing, of another artifact, of another index, or of another length.
        """
        with self._lock:
            if self.closed:
                raise ArtifactError(f"{self.path}: the artifact is closed")
            file = self._open[index]
            if file is None:
                file = self._open[index] = self._open_part(index)
            return file

    def _open_part(self, index: int) -> OpenFile:
        record = self._records[index]
        try:
            file = OpenFile(self.path.parent / str(record.path))
        except ArtifactError as error:
            raise self._error(index, error) from None
        try:
            start = file.read(0, min(HEADER_BYTES, file.bytes))
            check_part_header(start, PartHeader(index, self._header.artifact_id))
            expected = PAGE + record.payload_bytes
            if file.bytes != expected:
                raise ArtifactError(f"the file has {file.bytes} bytes; the directory says {expected}")
        except ArtifactError as error:
            file.close()
            raise self._error(index, error) from None
        return file

    def _error(self, index: int, error: ArtifactError) -> ArtifactError:
        where = f"part {index} ({self._records[index].path}): " if index else ""
        return ArtifactError(f"{self.path}: {where}{error}")

    def close(self) -> None:
        """Close all files. Arrays handed out stay valid."""
        with self._lock:
            self.closed = True
            for file in self._open:
                if file is not None:
                    file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
