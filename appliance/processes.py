"""Linux process duties of `up`: children that die with it, orphans that come to it, leftovers that it ends."""

import contextlib
import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

# In the environment of everything a box starts: how leftovers of a killed box are recognised.
RUN_VARIABLE = "NINFER_RUN_FOLDER"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Signals:
    """Turns signals into bytes on a socket, from `__enter__` to `__exit__`, so that one `select` waits for all."""

    NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

    def __enter__(self) -> "Signals":
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._handlers = {number: signal.signal(number, _ignore) for number in self.NUMBERS}
        self._previous = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._previous)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        """For `select`."""
        return self._reader.fileno()

    def read(self) -> list[signal.Signals]:
        """What came since the last call."""
        try:
            return [signal.Signals(number) for number in self._reader.recv(4096)]
        except BlockingIOError:
            return []


def _ignore(number: int, frame: object) -> None:
    """A handler that is not SIG_IGN: the wake-up byte does the work, and children start with the default."""


def reap() -> list[tuple[int, int]]:
    """Collect every child that has ended: process ids and wait statuses."""
    ended: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, status))
    return ended


def become_subreaper() -> None:
    """Make orphaned descendants our children, as they are PID 1's in a container.

    Raises:
        OSError: the kernel refuses.
    """
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(parent: int) -> Callable[[], None]:
    """For a child between fork and exec: SIGTERM when `parent` dies, however it dies."""

    def apply() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os.kill(os.getpid(), signal.SIGTERM)

    return apply


def leftovers(run: Path) -> list[psutil.Process]:
    """Processes of a box with this run folder, except this process and the ones above it."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid not in mine and process.environ().get(RUN_VARIABLE) == str(run):
                found.append(process)
    return found


def descendants() -> list[psutil.Process]:
    """All processes below this one."""
    return psutil.Process().children(recursive=True)


def end(processes: Iterable[psutil.Process], grace: float, collect: Callable[[], object] = list) -> int:
    """SIGTERM, then SIGKILL after `grace` seconds; returns how many there were.

    `collect` is called while waiting, because our own dead children stay listed until they are reaped.
    """
    waiting = list(processes)
    count = len(waiting)
    for number, limit in ((signal.SIGTERM, grace), (signal.SIGKILL, 2.0)):
        for process in waiting:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        deadline = time.monotonic() + limit
        while waiting and time.monotonic() < deadline:
            collect()
            waiting = [process for process in waiting if alive(process)]
            if waiting:
                time.sleep(0.02)
    return count


def alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def port_owner(port: int) -> str:
    """The process that listens on a TCP port, as `name (pid 12)`, or what can be said of it."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            address = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == port:
                if connection.pid is None:
                    return "a process of another user"
                with contextlib.suppress(psutil.Error):
                    return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
                return f"pid {connection.pid}"
    return "another process"
