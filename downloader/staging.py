"""The staged file of an unfinished download and its journal of chunk digests.

`FILE.REVISION.part` is named by the revision, so it can only continue the same bytes. Beside it a journal holds the
SHA-256 of every chunk as it came from the network. A chunk whose bytes on disk no longer match was damaged here, and
only that range is fetched again. A chunk that was stitched together from two connections is a *seam*: its digest
says nothing about the second half agreeing with the first, so seams are the first suspects when the whole differs.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from downloader.catalog import Pin

CHUNK_BYTES = 16 * 1024 * 1024


@dataclass
class Staging:
    """One staged file, open for writing at `length`. Use `open_staging`, and close it."""

    path: Path
    journal_path: Path
    total: int
    chunk_bytes: int
    file: FileIO
    digests: dict[int, str] = field(default_factory=dict)
    seams: set[int] = field(default_factory=set)
    length: int = 0

    def write(self, block: bytes) -> None:
        """Append at `length`, completing chunks in the journal as they fill.

        Raises:
            OSError: the disk is full or failed.
        """
        self._write_at(self.length, block)
        before = self.length // self.chunk_bytes
        self.length += len(block)
        for chunk in range(before, self._complete_chunks()):
            self._note(chunk)

    def chunk_range(self, chunk: int) -> tuple[int, int]:
        """Byte range [begin, end) of a chunk."""
        begin = chunk * self.chunk_bytes
        return begin, min(begin + self.chunk_bytes, self.total)

    def damaged_chunks(self) -> list[int]:
        """Journaled chunks whose bytes on disk no longer match their digest."""
        return [chunk for chunk, digest in sorted(self.digests.items()) if self._digest(chunk) != digest]

    def suspect_chunks(self) -> list[int]:
        """Chunks to doubt when the whole differs: damaged, stitched together, or never journaled."""
        unknown = set(range(-(-self.total // self.chunk_bytes))) - self.digests.keys()
        return sorted({*self.damaged_chunks(), *self.seams, *unknown})

    def replace_chunk(self, chunk: int, data: bytes) -> bool:
        """Overwrite one chunk with freshly fetched bytes; tells whether they differ from what was there."""
        begin, _ = self.chunk_range(chunk)
        changed = self._digest(chunk) != hashlib.sha256(data).hexdigest()
        self._write_at(begin, data)
        self.seams.discard(chunk)
        self._note(chunk)
        return changed

    def restart(self) -> None:
        """Forget everything staged."""
        self.file.truncate(0)
        self.length, self.digests, self.seams = 0, {}, set()
        self._write_journal()

    def mark_seam(self) -> None:
        """A new connection continues here: the chunk at `length` will be made of two pieces."""
        if self.length % self.chunk_bytes:
            self.seams.add(self.length // self.chunk_bytes)
            self._write_journal()

    def sync(self) -> None:
        """Make the staged bytes durable."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file; it stays for the next run."""
        self.file.close()

    def _write_at(self, position: int, data: bytes) -> None:
        # Unbuffered, so that a full disk shows here and nothing is lost or retried when the file is closed.
        self.file.seek(position)
        view = memoryview(data)
        while view:
            view = view[self.file.write(view) or 0 :]

    def _complete_chunks(self) -> int:
        if self.length >= self.total:
            return -(-self.total // self.chunk_bytes)
        return self.length // self.chunk_bytes

    def _digest(self, chunk: int) -> str:
        begin, end = self.chunk_range(chunk)
        self.file.seek(begin)
        return hashlib.sha256(self.file.read(end - begin)).hexdigest()

    def _note(self, chunk: int) -> None:
        self.sync()  # the journal may never claim bytes that a power cut can still take back
        self.digests[chunk] = self._digest(chunk)
        self._write_journal()

    def _write_journal(self) -> None:
        content = {"chunk_bytes": self.chunk_bytes, "digests": self.digests, "seams": sorted(self.seams)}
        temporary = self.journal_path.with_name(self.journal_path.name + ".new")
        try:
            temporary.write_text(json.dumps(content), encoding="utf-8")
            temporary.replace(self.journal_path)
        finally:
            temporary.unlink(missing_ok=True)


def part_path(folder: Path, pin: Pin) -> Path:
    """The staged file of `pin` in `folder`."""
    return folder / f"{pin.file}.{pin.revision}.part"


def open_staging(folder: Path, pin: Pin, chunk_bytes: int = CHUNK_BYTES) -> Staging:
    """Open or create the staged file; a journal of another chunk size or an unreadable one is not used.

    Raises:
        OSError: the folder cannot be written.
    """
    path = part_path(folder, pin)
    journal_path = path.with_name(path.name + ".journal")
    file = path.open("r+b" if path.exists() else "w+b", buffering=0)
    staging = Staging(path, journal_path, pin.bytes, chunk_bytes, file)
    staging.length = path.stat().st_size
    try:
        journal = json.loads(journal_path.read_text(encoding="utf-8"))
        if journal["chunk_bytes"] == chunk_bytes:
            staging.digests = {int(chunk): str(digest) for chunk, digest in journal["digests"].items()}
            staging.seams = {int(chunk) for chunk in journal["seams"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        staging.digests, staging.seams = {}, set()
    # Whatever lies beyond the file's end was journaled by a disk that then lost it.
    staging.digests = {c: d for c, d in staging.digests.items() if staging.chunk_range(c)[1] <= staging.length}
    return staging


def discard(folder: Path, pin: Pin) -> None:
    """Remove the staged file and its journal."""
    path = part_path(folder, pin)
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".journal").unlink(missing_ok=True)


def other_partials(folder: Path, pin: Pin) -> list[Path]:
    """Staged files of superseded revisions, and quarantined ones, of the same artifact."""
    mine = part_path(folder, pin)
    return sorted(
        path
        for path in folder.glob(f"{pin.file}.*.part*")
        if not path.name.startswith(mine.name) or path.name.startswith(mine.name + ".rejected")
    )
