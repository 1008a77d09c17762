"""New files under hidden names, and their publication (spec/artifact.md §1.4). Standard library only.

A file that is being made has a hidden name with the number of its process in it, and its process holds a lock on it.
The kernel drops the lock when the process ends, however it ends: what is left without a lock can be removed.
"""

import contextlib
import fcntl
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from engine.exits import ArtifactError


@dataclass(frozen=True)
class Unfinished:
    """A file that was never given its name; `owned` when its process still works on it."""

    path: Path
    bytes: int
    owned: bool


def create(target: Path) -> tuple[Path, int]:
    """Create and lock the hidden file that is to become `target`. Returns its path and a descriptor.

    Raises:
        OSError: the folder cannot be written.
    """
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # a filesystem without locks; there, nothing is ever taken for abandoned
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return temporary, descriptor


def publish(temporary: Path, target: Path) -> None:
    """Give a finished file its name, in one step.

    Raises:
        ArtifactError: there is a file of that name.
        OSError: the folder cannot be written.
    """
    # A hard link never replaces a file, unlike a rename. Some filesystems have none.
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        raise ArtifactError(f"{target}: appeared while it was being written and is not overwritten") from None
    except OSError:
        temporary.rename(target)
    else:
        temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Make names in `folder` survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_existing(target: Path) -> None:
    """Raises:
    ArtifactError: there is something called `target`.
    """
    if target.is_symlink() or target.exists():
        raise ArtifactError(f"{target}: exists already and is not overwritten; remove it or name another file")


def write_new(target: Path, data: bytes) -> None:
    """Write a small file that appears only when it is whole.

    Raises:
        ArtifactError: there is a file of that name.
        OSError: the disk does not take it.
    """
    refuse_existing(target)
    temporary, descriptor = create(target)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def find_unfinished(target: Path) -> list[Unfinished]:
    """Files that were to become `target`, a continuation file of it, or the report of its conversion."""
    name = re.compile(rf"\.{re.escape(target.name)}(\.part-\d+|\.conversion\.json)?\.[0-9a-f]{{8}}\.\d+\.tmp")
    found = []
    for path in sorted(path for path in target.parent.iterdir() if name.fullmatch(path.name)):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            size = os.fstat(descriptor).st_size
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                owned = False
            except OSError:
                owned = True
        finally:
            os.close(descriptor)
        found.append(Unfinished(path, size, owned))
    return found


def remove_unfinished(target: Path) -> list[Unfinished]:
    """Remove what `find_unfinished` finds and no process owns. Returns what was removed.

    Raises:
        OSError: the folder cannot be written.
    """
    removed = [item for item in find_unfinished(target) if not item.owned]
    for item in removed:
        item.path.unlink(missing_ok=True)
    return removed


def unfinished_note(target: Path) -> str | None:
    """A sentence for a person about abandoned files beside `target`; None when there are none."""
    left = [item for item in find_unfinished(target) if not item.owned]
    if not left:
        return None
    names = ", ".join(f"{item.path} ({item.bytes:,} bytes)" for item in left)
    return f"left by a run that was killed: {names}; --clean removes them"
