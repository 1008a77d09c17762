"""Starting and ending a worker process."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.constraint.messages import Setup

COMMAND = (sys.executable, "-m", "engine.constraint.worker")
END_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a worker may use: seconds for a compilation, for a mask, and to start; bytes of address space and cache."""

    compile_seconds: float = 5.0
    mask_seconds: float = 5.0
    start_seconds: float = 60.0
    address_space: int = 3 * 1024**3
    cache_bytes: int = 256 * 1024**2


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokens by id, the ids that never match text, and one id that stands for the end of an answer."""

    tokens: list[bytes]
    special: list[int]
    end: int

    @property
    def words(self) -> int:
        """int32 words of one mask."""
        return (len(self.tokens) + 31) // 32

    def setup(self, limits: Limits, lanes: int = 0, columns: int = 1) -> Setup:
        """The first message to a worker."""
        return Setup(
            tokens=self.tokens,
            special=self.special,
            end=self.end,
            lanes=lanes,
            columns=columns,
            cpu_seconds=limits.compile_seconds,
            cache_bytes=limits.cache_bytes,
        )


class Process:
    """A running worker and our end of its socket."""

    def __init__(self, limits: Limits, memory: int | None = None) -> None:
        """Start one. `memory` is the descriptor of the masks."""
        self.socket, theirs = socket.socketpair()
        # One thread in the library and few malloc arenas, so that the bound on address space means memory.
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "RAYON_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "2",
            "RUST_BACKTRACE": "0",
        }
        shared = () if memory is None else (memory,)
        with theirs:
            self._child = subprocess.Popen(
                [*COMMAND, str(theirs.fileno()), str(-1 if memory is None else memory), str(limits.address_space)],
                env=environment,
                pass_fds=(theirs.fileno(), *shared),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the worker."""
        return self._child.pid

    def kill(self) -> int:
        """End it now; its return code."""
        self.socket.close()
        self._child.kill()
        return self._child.wait(END_SECONDS)
