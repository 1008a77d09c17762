"""The staged file of an unfinished download: chunks arrive in any order, so it may have holes.

`FILE.REVISION.part` is named by the revision, so it can only continue the same bytes; its journal beside it says what
has arrived. Only the thread that opened it writes the journal; transfers write the chunk that is theirs.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from downloader.catalog import Pin
from downloader.chunks import Layout
from downloader.journal import Arrival, Journal, JournalError

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Disk:
    """What a disk does. Replaced in tests."""

    write: Callable[[int, memoryview, int], int] = os.pwrite
    sync: Callable[[int], None] = os.fdatasync
    free_bytes: Callable[[Path], int] = field(default=lambda folder: shutil.disk_usage(folder).free)


@dataclass
class Staging:
    """One staged file. Use `open_staging`."""

    path: Path
    journal: Journal
    layout: Layout
    arrivals: dict[int, Arrival]
    disk: Disk

    @property
    def staged_bytes(self) -> int:
        """Bytes that have arrived."""
        return sum(arrival.length for arrival in self.arrivals.values())

    @property
    def allocated_bytes(self) -> int:
        """Bytes the file already takes on disk."""
        return min(self.path.stat().st_blocks * 512, self.layout.total)

    def is_complete(self, chunk: int) -> bool:
        """Whether all of a chunk has arrived."""
        return chunk in self.arrivals and self.arrivals[chunk].length == self.layout.size(chunk)

    def missing(self) -> list[int]:
        """Chunks that have not arrived whole."""
        return [chunk for chunk in range(self.layout.count) if not self.is_complete(chunk)]

    def note(self, arrival: Arrival) -> None:
        """Write into the journal what is durable now.

        Raises:
            OSError: the disk is full or failed.
        """
        self.journal.append(arrival)
        self.arrivals[arrival.chunk] = arrival

    def damaged(self, digests: Iterable[str]) -> list[int]:
        """Chunks whose bytes on disk, which have these digests, are not those that arrived."""
        return [
            chunk
            for chunk, digest in enumerate(digests)
            if chunk in self.arrivals and self.arrivals[chunk].sha256 != digest
        ]

    def sync(self) -> None:
        """Make the whole file durable.

        Raises:
            OSError: the disk is full or failed.
        """
        with self.path.open("r+b") as file:
            self.disk.sync(file.fileno())


def part_path(folder: Path, pin: Pin) -> Path:
    """The staged file of `pin` in `folder`."""
    return folder / f"{pin.file}.{pin.revision}.part"


def journal_of(part: Path, pin: Pin) -> Journal:
    """The journal of a staged file."""
    return Journal(part.with_name(part.name + ".journal"), pin)


def open_staging(folder: Path, pin: Pin, disk: Disk) -> Staging:
    """Open or begin the staged file. What cannot be continued is dropped, and the log says how much and why.

    Raises:
        OSError: the folder cannot be written.
    """
    path = part_path(folder, pin)
    journal = journal_of(path, pin)
    arrivals: dict[int, Arrival] = {}
    try:
        arrivals = journal.read()
        size = path.stat().st_size
        # What lies beyond the file's end was lost by the disk after it was journaled.
        arrivals = {c: a for c, a in arrivals.items() if pin.layout.range(c)[0] + a.length <= size}
        if size > pin.bytes:
            os.truncate(path, pin.bytes)
    except (JournalError, FileNotFoundError) as error:
        if path.exists():
            log.warning("partial_dropped", path=str(path), dropped_bytes=path.stat().st_size, reason=str(error))
        arrivals = {}
        path.unlink(missing_ok=True)
        journal.start()
        path.touch()
    return Staging(path, journal, pin.layout, arrivals, disk)


def adopt(target: Path, folder: Path, pin: Pin, good: Iterable[tuple[int, str]]) -> None:
    """Make a promoted file that is damaged a staged one again, of which only `good` (chunk, digest) has arrived.

    So nothing doubtful lies under the final name while it is mended, no second copy needs room, and a repair that is
    killed goes on as any other download. A file that other names lead to is copied instead of changed.

    Raises:
        OSError: the folder cannot be written.
    """
    part = part_path(folder, pin)
    shared = target.is_symlink() or target.stat().st_nlink > 1
    arrivals = [Arrival(chunk, pin.layout.size(chunk), digest, source="repair") for chunk, digest in good]
    if shared:
        copy = part.with_name(part.name + ".copy")
        shutil.copyfile(target, copy)
        journal_of(part, pin).start(arrivals)
        copy.replace(part)
    else:
        # The journal first: without it the staged file would be dropped.
        journal_of(part, pin).start(arrivals)
        target.replace(part)


def discard(folder: Path, pin: Pin) -> None:
    """Remove the staged file and its journal."""
    path = part_path(folder, pin)
    path.unlink(missing_ok=True)
    journal_of(path, pin).path.unlink(missing_ok=True)
