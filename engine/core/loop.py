"""The loop: one thread that owns the rounds. Everything else reaches it through its inbox.

A cycle is: read the inbox, admit, one round over all decoding lanes, read the inbox again, one prefill chunk. So a
cancel or a closed connection frees its lane before the next round or chunk begins. With nothing to run the loop sleeps
on the inbox.
"""

import contextlib
import dataclasses
import functools
import gc
import queue
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch

from engine.constraint.errors import ConstraintError
from engine.constraint.masks import Masks, Report
from engine.core.lane import Lane, Request
from engine.core.scheduler import Scheduler
from engine.log import get_logger
from engine.protocol import (
    AskStatistics,
    Boot,
    Cancel,
    ConstraintReport,
    EngineMessage,
    Finish,
    LaneTokens,
    Progress,
    Rejected,
    Statistics,
    TokenLogprobs,
    Tokens,
    pack_ids,
)
from engine.rounds import Draw, Drawn, Runtime, decode, prefill
from kernels.sampling import PURPOSE_DECODE, PURPOSE_PREFILL

# Failed steps in a row, none further than this from the last and no answer between, before the engine gives up on
# itself (spec/serving.md §12).
MAX_FAILURES = 3
FAILURE_SECONDS = 30.0

HELD_SECONDS = 0.25  # between looks at the clock while every lane waits for a grammar
SETTLE_SECONDS = 0.5  # for the last word of a constraint about an answer that was cut

STEP_FAILED = "the engine failed while computing this answer"
STOPPED = "the engine was stopped before this answer ended"

RejectCode = Literal["overloaded", "queue_timeout", "unavailable"]

log = get_logger(__name__)


class LoopError(Exception):
    """The loop cannot go on: the process must end with status 3."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A checked request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Asked:
    """A message that is not a request."""

    connection: int
    message: Cancel | AskStatistics


@dataclass(frozen=True, slots=True)
class Closed:
    """A connection is gone."""

    connection: int


@dataclass(frozen=True, slots=True)
class Drain:
    """End: no new requests; what runs may go on for the configured seconds. A second one ends it now."""


@dataclass(frozen=True, slots=True)
class Unheld:
    """A lane that waited for its grammar can go on."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Another thread of this process ended badly."""

    reason: str


Event = Arrived | Asked | Closed | Drain | Unheld | Broken


@dataclass
class Counters:
    """Since ready (`Statistics`)."""

    rounds: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cancelled: int = 0
    failed: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass
class _Failures:
    """Decides when failing steps are no longer the requests' fault."""

    count: int = 0
    last: float = 0.0

    def add(self, now: float) -> None:
        self.count = self.count + 1 if now - self.last < FAILURE_SECONDS else 1
        self.last = now


@dataclass
class Loop:
    """Runs requests. Without `masks` none may have a constraint.

    `send(connection, message)`, `announce(message)` (that it is draining) and `disconnect(connection)` must not block.
    `clock` is monotonic, in seconds.
    """

    runtime: Runtime
    scheduler: Scheduler
    send: Callable[[int, EngineMessage], None]
    announce: Callable[[Boot], None]
    disconnect: Callable[[int], None]
    prefill_chunk: int
    drain_seconds: float
    masks: Masks | None = None
    clock: Callable[[], float] = time.monotonic
    inbox: "queue.SimpleQueue[Event]" = field(default_factory=queue.SimpleQueue)
    counters: Counters = field(default_factory=Counters)
    _failures: _Failures = field(default_factory=_Failures)
    _stop_by: float | None = None
    _unchecked: bool = True  # something happened since the books were last checked
    _held: bool = False  # every lane waits for its grammar

    def __post_init__(self) -> None:
        if self.masks is not None:
            self.masks.wake = lambda: self.inbox.put(Unheld())

    def run(self) -> None:
        """Until drained.

        Raises:
            LoopError: the device is lost, or steps keep failing.
            AccountingError: the books do not add up.
        """
        while self._stop_by is None or not self.scheduler.idle:
            self.cycle()

    def cycle(self) -> None:
        """Everything that can be done now; sleeps until the inbox has something when that is nothing."""
        self._read_inbox(sleep=self._rest())
        self._expire()
        if lanes := self._lanes_of_round():
            self._round(lanes)
            self._read_inbox()
        if (lane := self.scheduler.next_prefill(self._waits_to_begin)) is not None:
            self._chunk(lane)
        self._held = not lanes and lane is None and not self.scheduler.idle

    def statistics(self) -> Statistics:
        """Counters and gauges now."""
        scheduler, pages = self.scheduler, self.scheduler.pages
        return Statistics(
            running=len(scheduler.lanes),
            waiting=len(scheduler.waiting) + len(scheduler.paused),
            prefilling=sum(lane.prefilling for lane in scheduler.lanes),
            pages_capacity=pages.capacity,
            pages_allocated=pages.allocated,
            pages_reserved=pages.reserved,
            **dataclasses.asdict(self.counters),
        )

    def _rest(self) -> bool:
        """Whether there is nothing to do. The first time that is so, check the books and collect garbage."""
        if not self.scheduler.idle or self._stop_by is not None:
            return False
        if self._unchecked:
            self.scheduler.check()
            gc.collect()
            self._unchecked = False
        return True

    # Inbox

    def _read_inbox(self, *, sleep: bool = False) -> None:
        with contextlib.suppress(queue.Empty):
            self._handle(self.inbox.get(block=sleep or self._held, timeout=HELD_SECONDS if self._held else None))
            for _ in range(self.inbox.qsize()):  # not what comes meanwhile: the rounds must go on
                self._handle(self.inbox.get(block=False))
        if self._stop_by is not None and self.clock() >= self._stop_by:
            for request in list(self.scheduler.requests()):
                self._end(request, "error", error=STOPPED)
        self._admit()

    def _handle(self, event: Event) -> None:
        match event:
            case Arrived(request):
                self._arrive(request)
            case Asked(connection, Cancel(id=number)):
                if (found := self.scheduler.find((connection, number))) is not None:
                    self._end(found, "cancelled")
            case Asked(connection, AskStatistics()):
                self.send(connection, self.statistics())
            case Closed(connection):
                for request in [each for each in self.scheduler.requests() if each.connection == connection]:
                    self._end(request, "cancelled")
            case Drain():
                self._drain()
            case Unheld():
                pass
            case Broken(reason):
                raise LoopError(reason)

    def _arrive(self, request: Request) -> None:
        self._unchecked = True
        if self._stop_by is not None:
            self._reject(request, "unavailable", "the engine is stopping; try again soon")
        elif self.scheduler.find(request.key) is not None:
            # Any answer under this id would be taken for the first request's: the client has lost count.
            log.warning("id_in_use", connection=request.connection, id=request.id)
            self.disconnect(request.connection)
        elif not self.scheduler.submit(request, self.clock()):
            lanes, pending = len(self.scheduler.lanes), len(self.scheduler.waiting)
            self._reject(request, "overloaded", f"{lanes} requests run and {pending} wait; try again later")
        else:
            self._admit()

    def _admit(self) -> None:
        for lane in self.scheduler.admit(self.clock()):
            try:
                self.runtime.start_lane(lane.slot, lane.request.generated)
                if not lane.request.generated:
                    request = lane.request
                    self.send(request.connection, Progress(id=request.id, processed=0, total=request.target))
            except Exception as error:
                self._end(lane.request, "error", error=STEP_FAILED)
                self._failed(error)
                continue
            self._open_constraint(lane)

    def _expire(self) -> None:
        for request in self.scheduler.expire(self.clock()):
            waited = self.clock() - request.arrived
            self._reject(request, "queue_timeout", f"no lane was free within {waited:.1f} s; try again later")

    def _reject(self, request: Request, code: RejectCode, message: str) -> None:
        log.info("request_rejected", connection=request.connection, id=request.id, code=code)
        self.send(request.connection, Rejected(id=request.id, code=code, message=message))

    def _drain(self) -> None:
        seconds = self.drain_seconds if self._stop_by is None else 0.0
        self._stop_by = self.clock() + seconds
        running = len(self.scheduler.lanes) + len(self.scheduler.paused)
        log.info("draining", running=running, waiting=len(self.scheduler.waiting), seconds=seconds)
        self.announce(Boot(phase="draining", detail=f"{running} requests may end within {seconds:g} s"))
        for request in list(self.scheduler.waiting):
            self.scheduler.remove(request)
            self._reject(request, "unavailable", "the engine is stopping; try again soon")

    # Work

    def _lanes_of_round(self) -> list[Lane]:
        with self._pauses_logged():
            lanes = self.scheduler.round()
        return [lane for lane in lanes if not self._waits(lane.request)]

    @contextlib.contextmanager
    def _pauses_logged(self) -> Iterator[None]:
        before = len(self.scheduler.paused)
        yield
        for request in self.scheduler.paused[: len(self.scheduler.paused) - before]:
            log.info("request_paused", connection=request.connection, id=request.id, tokens=len(request.generated))
            self._close_constraint(request)

    def _round(self, lanes: list[Lane]) -> None:
        begun = self.clock()
        columns = [(lane.span(1), self._draw(lane, lane.frontier + 1, PURPOSE_DECODE)) for lane in lanes]
        results = decode(self.runtime, columns)
        self.counters.rounds += 1
        now = self.clock()
        self.counters.decode_seconds += now - begun
        gained: defaultdict[int, list[LaneTokens]] = defaultdict(list)
        failure: Exception | None = None
        for lane, result in zip(lanes, results, strict=True):
            request = lane.request
            if isinstance(result, ConstraintError):
                gained[request.connection].append(self._over(request, "error", failure=result))
            elif isinstance(result, Exception):
                failure = result
                gained[request.connection].append(self._over(request, "error", error=STEP_FAILED))
            else:
                lane.frontier += 1
                gained[request.connection].append(self._gain(lane, result, now))
        for connection, group in gained.items():
            self.send(connection, Tokens(round=self.counters.rounds, lanes=tuple(group)))
        if failure is not None:
            self._failed(failure)

    def _chunk(self, lane: Lane) -> None:
        begun = self.clock()
        request = lane.request
        length = min(self.prefill_chunk, request.target - lane.frontier)
        with self._pauses_logged():
            if not self.scheduler.cover(lane, lane.frontier + length):
                return
        last = lane.frontier + length == request.target
        draw = None
        if last and not request.generated and request.limit:
            draw = self._draw(lane, request.target, PURPOSE_PREFILL)
        try:
            drawn = prefill(self.runtime, lane.span(length), draw)
        except ConstraintError as error:
            self._end(request, "error", failure=error)
            return
        except Exception as error:
            self._end(request, "error", error=STEP_FAILED)
            self._failed(error)
            return
        lane.frontier += length
        now = self.clock()
        self.counters.prefill_seconds += now - begun
        if request.generated:  # back from a pause, or inserted: its client has seen all this
            return
        self.counters.prompt_tokens += length
        self.send(request.connection, Progress(id=request.id, processed=lane.frontier, total=request.target))
        if drawn is not None:
            gain = self._gain(lane, drawn, now)
            self.send(request.connection, Tokens(round=self.counters.rounds, lanes=(gain,)))
        elif last:
            request.first_token = now  # there is none, but the prompt is done
            self._end(request, request.limit_finish)

    def _gain(self, lane: Lane, drawn: Drawn, now: float) -> LaneTokens:
        """Append a token to an answer, and what it makes due; end the answer if that does."""
        request = lane.request
        if not request.generated:
            request.first_token = now
        before = len(request.generated)
        finish, stop = request.append(drawn.token)
        if finish is None and request.thought is not None and request.thought.exhausted:
            for token in request.thought.wrap_up:
                finish, stop = request.append(token)
                if finish is not None:
                    break
            # The next chunk of this lane runs them; they count for penalties as if they had been sampled.
            self.runtime.sampler.count(lane.slot, request.generated[before + 1 :])
            log.debug("thought_wrapped_up", connection=request.connection, id=request.id, tokens=request.thought.tokens)
        self._follow_constraint(request, before)
        self.counters.generated_tokens += len(request.generated) - before
        ids = pack_ids(request.generated[before:])
        logprobs = (drawn.logprobs,) if drawn.logprobs is not None else ()
        if finish is None:
            return LaneTokens(id=request.id, token_ids=ids, logprobs=logprobs)
        return self._over(request, finish, token_ids=ids, stop=stop, logprobs=logprobs)

    def _over(
        self,
        request: Request,
        finish: Finish,
        *,
        token_ids: bytes = b"",
        stop: bytes = b"",
        error: str = "",
        failure: ConstraintError | None = None,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> LaneTokens:
        """Free what a request holds; its last message."""
        report = self._close_constraint(request, settle=finish in ("length", "context", "stop_string"))
        self.scheduler.remove(request)
        if finish == "cancelled":
            self.counters.cancelled += 1
        elif finish == "error":
            self.counters.failed += 1
        else:
            self._failures.count = 0
        timings = request.timings(self.clock())
        log.info(
            "request_finished",
            connection=request.connection,
            id=request.id,
            finish=finish,
            prompt=len(request.prompt),
            generated=len(request.generated),
            queue=round(timings.queue, 4),
            prefill=round(timings.prefill, 4),
            decode=round(timings.decode, 4),
        )
        return LaneTokens(
            id=request.id,
            token_ids=token_ids,
            finish=finish,
            stop=stop,
            error=error if failure is None else failure.message,
            error_code="" if failure is None else failure.code,
            timings=timings,
            constraint=None if report is None else ConstraintReport(**dataclasses.asdict(report)),
            logprobs=logprobs,
        )

    def _end(
        self, request: Request, finish: Finish, *, error: str = "", failure: ConstraintError | None = None
    ) -> None:
        """End an answer without a token."""
        over = self._over(request, finish, error=error, failure=failure)
        self.send(request.connection, Tokens(round=self.counters.rounds, lanes=(over,)))

    # Constraints

    def _draw(self, lane: Lane, position: int, purpose: int) -> Draw:
        request = lane.request
        draw = Draw(lane.slot, position, purpose, request.sampling, request.logprobs)
        if request.constraint is None or self.masks is None:
            return draw
        if request.constraint.begin is None:  # an answer that ends in its thought fits nothing
            return dataclasses.replace(draw, forbidden=tuple(request.stop_ids))
        return dataclasses.replace(draw, mask=functools.partial(self.masks.row, request.key))

    def _open_constraint(self, lane: Lane) -> None:
        request, constraint = lane.request, lane.request.constraint
        if constraint is None or self.masks is None:
            return
        tokens = [] if constraint.begin is None else request.generated[constraint.begin :]
        self.masks.open(
            request.key, lane.slot, constraint.grammar, sorted(request.stop_ids), rest=constraint.rest, tokens=tokens
        )

    def _follow_constraint(self, request: Request, before: int) -> None:
        """Tell the worker of the tokens from `before` on; it computes the next mask while others run."""
        constraint = request.constraint
        if constraint is None or self.masks is None:
            return
        if constraint.begin is not None:
            tokens = [token for token in request.generated[before:] if token not in request.stop_ids]
            if tokens:
                self.masks.advance(request.key, tokens)
        elif request.thought is not None and not request.thought.open:
            constraint.begin = len(request.generated)
            constraint.rest = request.thought.rest.lstrip()  # white space after a thought is not part of the answer
            if len(request.generated) - before > 1:
                constraint.rest = b""  # inserted, and not the model's
            if constraint.rest:
                self.masks.advance(request.key, [], rest=constraint.rest)

    def _waits(self, request: Request) -> bool:
        """Whether the request cannot be sampled for because its grammar is not compiled yet."""
        constraint = request.constraint
        return (
            constraint is not None
            and constraint.begin is not None
            and self.masks is not None
            and not self.masks.ready(request.key)
        )

    def _waits_to_begin(self, lane: Lane) -> bool:
        """Whether the next chunk of a lane samples its first token, and cannot yet."""
        request = lane.request
        samples = not request.generated and request.limit > 0 and request.target - lane.frontier <= self.prefill_chunk
        return samples and self._waits(request)

    def _close_constraint(self, request: Request, *, settle: bool = False) -> Report | None:
        if request.constraint is None or self.masks is None:
            return None
        if settle and request.constraint.begin is not None:
            self.masks.settle(request.key, SETTLE_SECONDS)
        report = self.masks.close(request.key)
        if report is not None and request.constraint.begin is None:
            report.complete = False  # nothing of it was answered
        return report

    def _failed(self, error: Exception) -> None:
        """A step raised. Go on unless the device is lost or this keeps happening.

        Raises:
            LoopError: it makes no sense to go on.
        """
        log.error("step_failed", exc_info=error)
        now = self.clock()
        self._failures.add(now)
        if self._failures.count >= MAX_FAILURES:
            raise LoopError(f"{MAX_FAILURES} steps in a row failed; the last with {error!r}") from error
        if self.runtime.device.type == "cuda":
            try:
                torch.cuda.synchronize(self.runtime.device)
            except RuntimeError as lost:
                raise LoopError(f"the device is lost: {lost}") from lost
