"""A blocking client of the engine's socket, for tests."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.protocol import (
    Boot,
    ClientMessage,
    EngineMessage,
    FrameReceiver,
    Hello,
    Limits,
    Progress,
    Rejected,
    Tokens,
    decode_engine,
    encode,
)
from tests.core.harness import Answer


class Client:
    """Connects and files what comes: `hello`, `boots`, `limits`, and `answers` by request id."""

    def __init__(self, path: Path, timeout: float = 20.0) -> None:
        self.timeout = timeout
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._receiver = FrameReceiver()
        self.answers: dict[int, Answer] = {}
        self.boots: list[Boot] = []
        self.hello: Hello | None = None
        self.limits: Limits | None = None
        self.kinds: list[str] = []
        self.closed = False

    def send(self, message: ClientMessage) -> None:
        """One message."""
        self.socket.sendall(encode(message))

    def messages(self) -> Iterator[EngineMessage]:
        """What comes, filed and handed on; ends when the engine closes."""
        while not self.closed:
            try:
                frames = self._receiver.receive(self.socket)
            except ConnectionResetError:
                frames = None
            if frames is None:
                self.closed = True
                return
            for body, _ in frames:
                message = decode_engine(body)
                self._file(message)
                yield message

    def until(self, done: Callable[[], bool]) -> None:
        """Read until `done`."""
        end = time.monotonic() + self.timeout
        if done():
            return
        for _ in self.messages():
            if done():
                return
            assert time.monotonic() < end, "too long"
        assert done(), "the engine closed the connection"

    def ready(self) -> Self:
        """Wait for the engine to be ready."""
        self.until(lambda: bool(self.boots) and self.boots[-1].phase == "ready")
        return self

    def answer(self, id: int) -> Answer:
        """The whole answer of a request."""
        found = self.answers.setdefault(id, Answer())
        self.until(lambda: found.finish is not None or found.rejected is not None)
        return found

    def read_to_the_end(self) -> None:
        """Until the engine closes the connection."""
        for _ in self.messages():
            pass

    def close(self) -> None:
        """Drop the connection."""
        self.socket.close()
        self._receiver.close()
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _file(self, message: EngineMessage) -> None:
        self.kinds.append(type(message).__name__)
        match message:
            case Hello():
                self.hello = message
            case Boot():
                self.boots.append(message)
            case Limits():
                self.limits = message
            case Progress() | Rejected():
                self.answers.setdefault(message.id, Answer()).add(message)
            case Tokens():
                for part in message.lanes:
                    self.answers.setdefault(part.id, Answer()).add((message.round, part))


def wait_for(path: Path, timeout: float = 30.0) -> None:
    """Until something listens at `path`."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(path))
            return
        time.sleep(0.02)
    raise AssertionError(f"nothing listens at {path}")
