"""The one connection from `api` to `engine`: connects with back-off, routes tokens to requests, notices a dead peer."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.log import get_logger
from engine.protocol import (
    AskStatistics,
    Boot,
    Cancel,
    ClientMessage,
    EngineConnection,
    EngineMessage,
    Hello,
    LaneTokens,
    Limits,
    Progress,
    ProtocolError,
    Rejected,
    Statistics,
    Submit,
    Tokens,
)

log = get_logger(__name__)

FIRST_DELAY = 0.05
LONGEST_DELAY = 0.25
OPEN_TIMEOUT = 10.0
BEAT = 1.0

Answer = LaneTokens | Progress | Rejected


class EngineLostError(Exception):
    """The engine died, hangs, or was never there; the request gets no more tokens."""


class Stream:
    """What the engine says about one request. Leaving the context before a finish cancels it."""

    def __init__(self, link: "EngineLink", request: int) -> None:
        self._link, self.id = link, request
        self._answers: asyncio.Queue[Answer | EngineLostError] = asyncio.Queue()
        self._ended = False
        self._started = False

    def begin(self) -> bool:
        """Note that tokens came; False the first time."""
        started, self._started = self._started, True
        return started

    async def next(self, patience: float) -> Answer | None:
        """The next answer, or None after `patience` seconds without one.

        Raises:
            EngineLostError: the engine is gone.
        """
        if self._answers.empty():
            try:
                async with asyncio.timeout(patience):
                    answer = await self._answers.get()
            except TimeoutError:
                return None
        else:
            answer = self._answers.get_nowait()
        if isinstance(answer, EngineLostError):
            raise answer
        return answer

    def put(self, answer: Answer | EngineLostError) -> None:
        """Called by the link."""
        last = not isinstance(answer, LaneTokens | Progress)
        self._ended = self._ended or last or (isinstance(answer, LaneTokens) and answer.finish is not None)
        self._answers.put_nowait(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.release(self.id, cancel=not self._ended)


class EngineLink:
    """Owns the connection. `run` keeps it up; everything else is safe to call from the event loop at any time.

    Args:
        path: the engine's Unix socket.
        heartbeat: once ready, an engine that sends nothing for so many seconds is treated as dead. It is asked for
            `Statistics` every second, so a healthy one always has something to say.
        stall: an engine that has requests of ours but moves none of them for so many seconds is treated as dead.
        on_statistics: called with the previous `Statistics` of this connection (zeros at first) and the new one.
        on_round: called with the rows of a decode round and their tokens; a request's first tokens are not counted.
    """

    def __init__(
        self,
        path: Path,
        *,
        heartbeat: float,
        stall: float,
        on_statistics: Callable[[Statistics, Statistics], None] | None = None,
        on_round: Callable[[int, int], None] | None = None,
    ) -> None:
        self._path, self._heartbeat, self._stall = path, heartbeat, stall
        self._on_statistics, self._on_round = on_statistics, on_round
        self._outgoing: asyncio.Queue[ClientMessage] | None = None
        self._streams: dict[int, Stream] = {}
        self._next_id = 1
        self._heard = self._moved = 0.0
        self.hello: Hello | None = None
        self.boot: Boot | None = None
        self.limits: Limits | None = None
        self.statistics = Statistics()
        self.losses = 0  # connections that ended

    @property
    def ready(self) -> bool:
        """Whether the engine is there and says so itself."""
        return self.boot is not None and self.boot.phase == "ready" and self.limits is not None

    def submit(self, make: Callable[[int], Submit]) -> Stream:
        """Send what `make` returns for a fresh request id.

        Raises:
            EngineLostError: there is no connection.
        """
        if self._outgoing is None:
            raise EngineLostError("the engine is not connected")
        stream = Stream(self, self._next_id)
        self._next_id += 1
        if not self._streams:
            self._moved = time.monotonic()
        self._streams[stream.id] = stream
        self._outgoing.put_nowait(make(stream.id))
        return stream

    def release(self, request: int, *, cancel: bool) -> None:
        """Forget a request; tell the engine if it may still be working on it."""
        if self._streams.pop(request, None) is not None and cancel and self._outgoing is not None:
            self._outgoing.put_nowait(Cancel(id=request))

    def end_streams(self, reason: str) -> None:
        """End every open request with `EngineLostError`; the engine is told to cancel them."""
        for request, stream in list(self._streams.items()):
            stream.put(EngineLostError(reason))
            self.release(request, cancel=True)

    async def run(self) -> None:
        """Connect, serve, and connect again, until cancelled."""
        delay = FIRST_DELAY
        while True:
            try:
                async with asyncio.timeout(OPEN_TIMEOUT):
                    connection = await EngineConnection.open(self._path)
            except ProtocolError as error:
                log.error("engine_refused", socket=str(self._path), reason=str(error))
                delay = 1.0
            except (OSError, TimeoutError):
                delay = min(delay * 2, LONGEST_DELAY)
            else:
                delay = FIRST_DELAY
                await self._serve(connection)
            await asyncio.sleep(delay)

    async def _serve(self, connection: EngineConnection) -> None:
        self.hello = connection.hello
        self._outgoing = asyncio.Queue()
        self._heard = self._moved = time.monotonic()
        log.info("engine_connected", socket=str(self._path), model=connection.hello.model)
        reason = "the server is shutting down"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(connection))
                group.create_task(self._write(connection, self._outgoing))
                group.create_task(self._beat(self._outgoing))
        except* (OSError, ProtocolError, EngineLostError) as errors:
            reason = str(errors.exceptions[0]) or type(errors.exceptions[0]).__name__
            log.warning("engine_lost", reason=reason, open_requests=len(self._streams))
        finally:
            connection.close()
            self.losses += 1
            self.hello = self.boot = self.limits = self._outgoing = None
            self.statistics = Statistics()
            streams, self._streams = self._streams, {}
            for stream in streams.values():
                stream.put(EngineLostError(reason))

    async def _read(self, connection: EngineConnection) -> None:
        while True:
            message = await connection.receive()
            self._heard = time.monotonic()
            self._take(message)

    def _take(self, message: EngineMessage) -> None:
        if isinstance(message, Tokens):
            self._moved = self._heard
            decoded = [len(lane.token_ids) // 4 for lane in message.lanes if self._decodes(lane)]
            if decoded and self._on_round is not None:
                self._on_round(len(decoded), sum(decoded))
            for lane in message.lanes:
                self._route(lane.id, lane)
        elif isinstance(message, Progress):
            self._moved = self._heard
            self._route(message.id, message)
        elif isinstance(message, Rejected):
            self._route(message.id, message)
        elif isinstance(message, Statistics):
            before, self.statistics = self.statistics, message
            if _work(before) != _work(message):
                self._moved = self._heard
            if self._on_statistics is not None:
                self._on_statistics(before, message)
        elif isinstance(message, Limits):
            self.limits = message
        elif isinstance(message, Boot):
            self.boot = message

    def _decodes(self, lane: LaneTokens) -> bool:
        stream = self._streams.get(lane.id)
        return bool(lane.token_ids) and (stream is None or stream.begin())

    def _route(self, request: int, answer: Answer) -> None:
        stream = self._streams.get(request)
        if stream is not None:  # a cancelled request may still be answered
            stream.put(answer)

    async def _write(self, connection: EngineConnection, outgoing: "asyncio.Queue[ClientMessage]") -> None:
        while True:
            await connection.send(await outgoing.get())

    async def _beat(self, outgoing: "asyncio.Queue[ClientMessage]") -> None:
        while True:
            await asyncio.sleep(min(BEAT, self._heartbeat / 3))
            now = time.monotonic()
            if not self.ready:
                self._heard = self._moved = now
                continue
            if now - self._heard > self._heartbeat:
                raise EngineLostError(f"the engine has said nothing for {self._heartbeat:g} s")
            if self._streams and now - self._moved > self._stall:
                raise EngineLostError(f"the engine has not moved a request for {self._stall:g} s")
            outgoing.put_nowait(AskStatistics())


def _work(statistics: Statistics) -> tuple[int, int, int]:
    return statistics.rounds, statistics.prompt_tokens, statistics.generated_tokens
