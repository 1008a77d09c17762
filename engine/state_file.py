"""`state.json`: where the boot is. Written by `controller`; read by `api`, `ninfer-appliance up` and `status`."""

import os
import tempfile
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.protocol import Phase

Level = Literal["ok", "warning", "bad"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check of the doctor says: a sentence, and the command to type. `fixable`: `doctor --fix` does it."""

    check: str
    level: Level
    sentence: str
    command: str = ""
    fixable: bool = False


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The boot as the controller sees it. `done` of `total` counts `unit`s; `since` is in Unix seconds."""

    phase: Phase
    detail: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""
    since: float = 0.0
    restarts: int = 0
    exit_code: int | None = None  # null until the outcome is final
    engine_pid: int | None = None
    plan: dict[str, Any] = {}
    url: str = ""
    findings: tuple[Finding, ...] = ()  # of the doctor
    log: tuple[str, ...] = ()  # the last lines of the program that failed


def write_state(path: Path, state: State) -> None:
    """Replace `path` in one step, so that a reader sees the old state or the new one, never a part.

    Raises:
        OSError: the folder cannot be written.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_state(path: Path) -> State | None:
    """The state in `path`, or None while nobody has written one.

    Raises:
        msgspec.MsgspecError: the file holds something else.
        OSError: the file exists but cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=State)
