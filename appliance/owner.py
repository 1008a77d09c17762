"""One box a home: the lock, and who holds it."""

import contextlib
import os
import time
from pathlib import Path

import filelock
import msgspec
import psutil

from engine.exits import ConfigurationError


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The `up` that holds a home. `created` is its start, so that a reused process id is not taken for it."""

    pid: int
    created: float
    run: str


class Lock:
    """Holds HOME/state/up.lock for the life of `up`; the kernel frees it when the process dies."""

    def __init__(self, state: Path) -> None:
        self._owner = state / "up.json"
        self._lock = filelock.FileLock(state / "up.lock", mode=0o600)

    def acquire(self, run: Path) -> Owner | None:
        """Take the lock; returns the owner that never let go properly, if there was one.

        Raises:
            ConfigurationError: another box runs in this home; the message names it.
        """
        try:
            self._lock.acquire(blocking=False)
        except filelock.Timeout as error:
            held = read_owner(self._owner.parent)
            who = f"pid {held.pid}" if held is not None else "another process"
            raise ConfigurationError(
                f"a box already runs in {self._owner.parent.parent} ({who}); "
                "ninfer-appliance stop ends it, or choose another --home"
            ) from error
        previous = read_owner(self._owner.parent)
        created = psutil.Process().create_time()
        self._owner.write_bytes(msgspec.json.encode(Owner(pid=os.getpid(), created=created, run=str(run))))
        return previous

    def release(self) -> None:
        """Let go, leaving no trace of an owner."""
        self._owner.unlink(missing_ok=True)
        self._lock.release()


def read_owner(state: Path) -> Owner | None:
    """What up.json says; the process may be gone."""
    try:
        return msgspec.json.decode((state / "up.json").read_bytes(), type=Owner)
    except (OSError, msgspec.MsgspecError):
        return None


def running_owner(state: Path) -> Owner | None:
    """The owner, if that very process is alive."""
    owner = read_owner(state)
    if owner is None:
        return None
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(owner.pid)
        if abs(process.create_time() - owner.created) < 1.0 and process.status() != psutil.STATUS_ZOMBIE:
            return owner
    return None


def wait_until_gone(owner: Owner, state: Path, seconds: float) -> bool:
    """Whether the owner ended within `seconds`."""
    deadline = time.monotonic() + seconds
    while running_owner(state) == owner:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True
