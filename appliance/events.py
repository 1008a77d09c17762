"""supervisord's event-listener protocol, on the controller's stdin and stdout.

The listener writes `READY`, supervisord sends one event (a header line of `key:value` words, then a payload), the
listener acknowledges with `RESULT 2` and `OK`. Events are acknowledged at once, before anything is done about them:
supervisord sends nothing more to a listener that has not answered.
"""

import asyncio
import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass

READY = b"READY\n"
OK = b"RESULT 2\nOK"


@dataclass(frozen=True)
class ProcessState:
    """A program changed its state: `state` is STARTING, RUNNING, EXITED, FATAL, ..."""

    program: str
    state: str
    pid: int | None


@dataclass(frozen=True)
class ProcessLog:
    """A program printed `text`, cut where supervisord read it."""

    program: str
    text: str


@dataclass(frozen=True)
class Stopping:
    """supervisord is shutting down."""


SupervisorEvent = ProcessState | ProcessLog | Stopping


async def listen(
    source: asyncio.StreamReader, write: Callable[[bytes], object], deliver: Callable[[SupervisorEvent], None]
) -> None:
    """Receive events until supervisord closes `source`.

    Raises:
        OSError: supervisord is gone.
        asyncio.IncompleteReadError: it went within an event.
    """
    while True:
        write(READY)
        line = await source.readline()
        if not line:
            return
        header = words(line.decode())
        payload = await read_characters(source, int(header["len"]))
        write(OK)
        event = parse(header, payload)
        if event is not None:
            deliver(event)


async def read_characters(source: asyncio.StreamReader, count: int) -> str:
    """Exactly `count` characters of UTF-8. supervisord counts characters in `len`, not bytes.

    Raises:
        asyncio.IncompleteReadError: the stream ended before.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    while len(text) < count:
        # No character is shorter than a byte, so this never reads beyond the payload.
        data = await source.read(count - len(text))
        if not data:
            raise asyncio.IncompleteReadError(text.encode(), count)
        text += decoder.decode(data)
    return text


def parse(header: Mapping[str, str], payload: str) -> SupervisorEvent | None:
    """The event, or None for one that means nothing to us."""
    name = header["eventname"]
    if name == "SUPERVISOR_STATE_CHANGE_STOPPING":
        return Stopping()
    if name.startswith("PROCESS_STATE_"):
        fields = words(payload)
        pid = int(fields["pid"]) if fields.get("pid", "").isdigit() else None
        return ProcessState(fields["processname"], name.removeprefix("PROCESS_STATE_"), pid)
    if name.startswith("PROCESS_LOG_"):
        first, _, text = payload.partition("\n")
        return ProcessLog(words(first)["processname"], text)
    return None


def words(line: str) -> dict[str, str]:
    """`a:b c:d` as a dictionary."""
    return dict(word.split(":", 1) for word in line.split())


class Lines:
    """Puts the pieces of a program's output together to lines."""

    def __init__(self) -> None:
        self._rest = ""

    def push(self, text: str) -> list[str]:
        """The lines that `text` completes."""
        *lines, self._rest = (self._rest + text).split("\n")
        return lines
