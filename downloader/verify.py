"""Hash files, and remember which file was verified so that a restart need not read 20 GB again."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from downloader.catalog import Pin

BLOCK_BYTES = 4 * 1024 * 1024
Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


def sha256_file(path: Path, progress: Progress = no_progress) -> str:
    """Lower-case hex SHA-256 of a file; `progress(done, total)` in bytes."""
    total = path.stat().st_size
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            done += len(block)
            progress(done, total)
    return digest.hexdigest()


def is_verified(path: Path, pin: Pin, progress: Progress = no_progress) -> bool:
    """Whether `path` holds exactly the pinned bytes. Reads the file unless it is unchanged since it last did."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if status.st_size != pin.bytes:
        return False
    if _read_record(path) == _record(status, pin):
        return True
    if sha256_file(path, progress) != pin.sha256:
        return False
    remember(path, pin)
    return True


def remember(path: Path, pin: Pin) -> None:
    """Write the record beside a file that was just verified. A read-only folder only costs the next read."""
    record = record_path(path)
    try:
        temporary = record.with_name(record.name + ".new")
        temporary.write_text(json.dumps(_record(path.stat(), pin)), encoding="utf-8")
        temporary.replace(record)
    except OSError:
        # The old record is of another file; it says so itself where it cannot be removed.
        with contextlib.suppress(OSError):
            record.unlink(missing_ok=True)


def record_path(path: Path) -> Path:
    """Where the verification record of `path` lies."""
    return path.with_name(path.name + ".verified")


def _record(status: os.stat_result, pin: Pin) -> dict[str, int | str]:
    return {
        "sha256": pin.sha256,
        "bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
        "changed_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def _read_record(path: Path) -> object:
    try:
        return json.loads(record_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
