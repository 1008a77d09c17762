"""Verify files, and remember what was verified: so a restart need not read 20 GB again, and damage can be located.

The record `FILE.verified` holds what the file looked like and, learned when the whole was right, the digest of every
chunk. A record is no authority: the catalog's SHA-256 of the whole decides; chunk digests only say where to look.
"""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from downloader.catalog import Pin
from downloader.chunks import Digests, Progress, no_progress, read_digests


@dataclass(frozen=True)
class Inspection:
    """What a file is: the pinned bytes, or which chunks are not, where their digests are known."""

    good: bool
    chunks: tuple[str, ...]  # of the file as it is
    expected: tuple[str, ...] | None  # None: nothing is known about single chunks

    @property
    def sound(self) -> list[tuple[int, str]]:
        """Chunks that are right, with their digests; empty where nothing is known."""
        return [
            (chunk, digest)
            for chunk, (digest, wanted) in enumerate(zip(self.chunks, self.expected or (), strict=False))
            if digest == wanted
        ]

    @property
    def damaged(self) -> list[int]:
        """Chunks that are wrong or missing; empty where nothing is known."""
        sound = {chunk for chunk, _ in self.sound}
        return [chunk for chunk in range(len(self.expected or ())) if chunk not in sound]


def is_verified(path: Path, pin: Pin, progress: Progress = no_progress) -> bool:
    """Whether `path` holds exactly the pinned bytes. Reads the file unless it is unchanged since it last did."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return status.st_size == pin.bytes and (is_remembered(path, pin) or inspect(path, pin, progress).good)


def is_remembered(path: Path, pin: Pin) -> bool:
    """Whether `path` was verified and is unchanged since, by size, times and inode."""
    try:
        status = path.stat()
    except OSError:
        return False
    record = _read_record(path)
    return all(record.get(key) == value for key, value in {"bytes": pin.bytes, **_identity(status, pin)}.items())


def inspect(path: Path, pin: Pin, progress: Progress = no_progress) -> Inspection:
    """Read the whole file. A good one is remembered.

    Raises:
        OSError: it cannot be read.
    """
    expected = known_chunks(path, pin)
    if expected is None and path.stat().st_size != pin.bytes:
        return Inspection(False, (), None)
    found = read_digests(path, pin.chunk_bytes, progress)
    good = found.whole == pin.sha256
    if good:
        remember(path, pin, found)
    return Inspection(good, found.chunks, expected)


def known_chunks(path: Path, pin: Pin) -> tuple[str, ...] | None:
    """The digest that each chunk of `pin` has: the catalog's, else those learned when `path` was last right."""
    if pin.chunks is not None:
        return pin.chunks
    record = _read_record(path)
    chunks = record.get("chunks")
    if (
        record.get("sha256") == pin.sha256
        and record.get("chunk_bytes") == pin.chunk_bytes
        and isinstance(chunks, list)
        and len(chunks) == pin.layout.count
    ):
        return tuple(map(str, chunks))
    return None


def remember(path: Path, pin: Pin, digests: Digests) -> None:
    """Write the record beside a file that was just verified. A read-only folder only costs the next read."""
    record = record_path(path)
    content = {**_identity(path.stat(), pin), "chunk_bytes": pin.chunk_bytes, "chunks": digests.chunks}
    # An old record of another file may stay: it says so itself.
    with contextlib.suppress(OSError):
        temporary = record.with_name(record.name + ".new")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(record)


def record_path(path: Path) -> Path:
    """Where the verification record of `path` lies."""
    return path.with_name(path.name + ".verified")


def _identity(status: os.stat_result, pin: Pin) -> dict[str, int | str]:
    return {
        "sha256": pin.sha256,
        "bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
        "changed_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def _read_record(path: Path) -> dict[str, object]:
    try:
        record = json.loads(record_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
