"""The files of one new artifact: hidden while they are written, published together (spec/artifact.md §1.1, §1.4).

Standard library only.
"""

import errno
import os
import shutil
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from engine.artifact.header import PAGE, EntryHeader, PartHeader
from engine.artifact.unfinished import create, publish, refuse_existing, sync_folder
from engine.exits import ArtifactError, NInferError

_BLOCK = 8 << 20
# What copy_file_range says where it cannot work between two files.
_CANNOT_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY}


class FileSet:
    """An entry file and its continuations, addressed as one logical payload.

    Bytes that are never written are zero and take no room on the disk.
    """

    def __init__(self, path: Path, text: bytes, files: Sequence[Mapping[str, Any]], artifact_id: bytes) -> None:
        """Reserve the files and write their headers; `text` and `files` come from `plan_files`.

        Raises:
            ArtifactError: a file of a name to be written exists.
            NInferError: the disk has too little room.
            OSError: the folder cannot be written.
        """
        self.path = path
        self.targets = [path, *(path.parent / record["path"] for record in files[1:])]
        header = EntryHeader(len(text), artifact_id)
        sizes = [record["payload_bytes"] for record in files]
        self._starts = [header.payload_start] + [PAGE] * (len(files) - 1)
        self._ends = list(accumulate(sizes))
        self._sizes = [start + size for start, size in zip(self._starts, sizes, strict=True)]
        self._temporary: list[Path] = []
        self._descriptors: list[int] = []
        self._refuse_existing()
        self._refuse_full_disk()
        try:
            for target, size in zip(self.targets, self._sizes, strict=True):
                temporary, descriptor = create(target)
                self._temporary.append(temporary)
                self._descriptors.append(descriptor)
                os.ftruncate(descriptor, size)
            _write_all(self._descriptors[0], 0, memoryview(header.encode() + text))
            for index in range(1, len(files)):
                _write_all(self._descriptors[index], 0, memoryview(PartHeader(index, artifact_id).encode()))
        except BaseException:
            self.abort()
            raise

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write payload bytes from the logical `position` on. OSError when the disk does not take them."""
        view = memoryview(data)
        for descriptor, offset, begin, length in self._spans(position, len(view)):
            _write_all(descriptor, offset, view[begin : begin + length])

    def copy(self, position: int, source: int, source_offset: int, length: int) -> None:
        """Copy bytes of the open file `source` to the logical `position`; the kernel may share blocks instead.

        Raises:
            ArtifactError: the source ends early.
            OSError: a disk fails.
        """
        for descriptor, offset, begin, count in self._spans(position, length):
            _copy(source, source_offset + begin, descriptor, offset, count)

    def commit(self) -> None:
        """Publish: continuation files first, the entry file last.

        Raises:
            ArtifactError: a file has another size than planned, or a target appeared meanwhile.
            OSError: the disk does not take the last bytes.
        """
        for descriptor, target, expected in zip(self._descriptors, self.targets, self._sizes, strict=True):
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
            if size != expected:
                raise ArtifactError(f"{target}: the file came out with {size} bytes, not {expected}")
        self._refuse_existing()
        published: list[Path] = []
        try:
            for temporary, target in reversed(list(zip(self._temporary, self.targets, strict=True))):
                publish(temporary, target)
                published.append(target)
            sync_folder(self.path.parent)
        except BaseException:
            for target in published:
                target.unlink(missing_ok=True)
            raise
        self._temporary.clear()
        self.abort()

    def abort(self) -> None:
        """Close the files, and remove those that are not published."""
        while self._temporary:
            self._temporary.pop().unlink(missing_ok=True)
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _spans(self, position: int, length: int) -> list[tuple[int, int, int, int]]:
        """Descriptor, file offset, and begin and length in the data, of each file that a range reaches."""
        spans = []
        begin = 0
        while begin < length:
            index = bisect_right(self._ends, position + begin)
            left = self._ends[index] - (position + begin)
            count = min(length - begin, left)
            spans.append((self._descriptors[index], self._sizes[index] - left, begin, count))
            begin += count
        return spans

    def _refuse_existing(self) -> None:
        for target in self.targets:
            refuse_existing(target)

    def _refuse_full_disk(self) -> None:
        needed = sum(self._sizes)
        free = shutil.disk_usage(self.path.parent).free
        if free < needed:
            raise NInferError(f"{self.path}: the artifact takes {needed} bytes; its disk has {free} bytes free")


def _write_all(descriptor: int, offset: int, view: memoryview) -> None:
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _copy(source: int, begin: int, target: int, offset: int, count: int) -> None:
    by_kernel = True
    while count:
        if by_kernel:
            try:
                done = os.copy_file_range(source, target, min(count, _BLOCK), begin, offset)
            except OSError as error:
                if error.errno not in _CANNOT_COPY:
                    raise
                by_kernel = False
                continue
        else:
            data = os.pread(source, min(count, _BLOCK), begin)
            done = len(data)
            _write_all(target, offset, memoryview(data))
        if not done:
            raise ArtifactError(f"the source ends at byte {begin}, {count} bytes too early")
        begin, offset, count = begin + done, offset + done, count - done
