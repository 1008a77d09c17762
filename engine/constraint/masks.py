"""The engine's side of the constraint worker: which tokens may come next on each lane.

The loop opens a lane, feeds it the tokens it commits and, when it samples, reads the mask, which has been computed
meanwhile. A worker that dies or takes too long is replaced; the lanes it held are opened again from their tokens, and
only the one that it was working on fails.
"""

import contextlib
import mmap
import os
import select
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from engine.constraint.errors import Code, ConstraintError
from engine.constraint.messages import (
    HEADER_BYTES,
    MARKERS,
    Advance,
    Began,
    Close,
    Frames,
    FromWorker,
    Masked,
    Open,
    Ready,
    ToWorker,
    frame,
    from_worker,
)
from engine.constraint.process import Limits, Process, Vocabulary
from engine.log import get_logger

log = get_logger(__name__)

Key = tuple[int, int]  # connection, request id
Cache = Literal["hit", "built", "waited"]

POLL_SECONDS = 0.1
LONGEST_PAUSE = 10.0
LATENESS = 1.0  # beyond its own limit, before a lane that waits for its mask is given up
MOST_RESTARTS = 3  # of one lane without a mask between


@dataclass
class Report:
    """What a constraint has cost and come to (spec/serving.md §6.6)."""

    complete: bool = False
    cache: str = ""
    mask_positions: int = 0
    mask_upload_bytes: int = 0
    prepare_seconds: float = 0.0
    matcher_seconds: float = 0.0
    mask_seconds: float = 0.0


@dataclass
class _Lane:
    slot: int
    grammar: bytes
    stops: list[int]
    rest: bytes
    tokens: list[int]
    number: int = 0  # of the job that it last asked for
    opened: bool = False
    waiting: bool = True  # for an answer
    overdue: float = float("inf")
    columns: int = 0
    restarts: int = 0
    failure: ConstraintError | None = None
    report: Report = field(default_factory=Report)


class Masks:
    """Masks int32 `[lanes, columns, words]` in memory shared with the worker.

    All methods are for one thread, the loop's; none but `row` and `settle` waits. `wake` is called on another thread
    when a lane's first mask is there, or it has failed.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        lanes: int,
        *,
        columns: int = 1,
        limits: Limits | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._vocabulary, self._limits, self.wake = vocabulary, limits or Limits(), wake
        self._lanes_count, self._columns = lanes, columns
        size = HEADER_BYTES + 4 * lanes * columns * vocabulary.words
        self._descriptor = os.memfd_create("ninfer-masks", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, size)
        self._memory = mmap.mmap(self._descriptor, size)
        self.words: np.ndarray[Any, np.dtype[np.int32]] = np.frombuffer(
            self._memory, dtype=np.int32, offset=HEADER_BYTES
        ).reshape(lanes, columns, vocabulary.words)
        self._changed = threading.Condition()
        self._lanes: dict[Key, _Lane] = {}
        self._numbers: dict[int, Key] = {}
        self._next = 1
        self._process: Process | None = None
        self._up = False
        self._thread: threading.Thread | None = None
        self._stopping = self._worked = False

    @property
    def pid(self) -> int | None:
        """Of the worker, once it works."""
        with self._changed:
            return self._process.pid if self._process is not None and self._up else None

    def start(self) -> None:
        """Have a worker, without waiting for it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="constraints", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the worker."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            if self._process is not None:
                with contextlib.suppress(OSError):
                    self._process.socket.shutdown(2)
        if self._thread is not None:
            self._thread.join(self._limits.start_seconds)

    def open(
        self,
        key: Key,
        slot: int,
        grammar: bytes,
        stops: list[int],
        *,
        rest: bytes = b"",
        tokens: list[int] | None = None,
    ) -> None:
        """A lane begins, with text and tokens that have come already."""
        self.start()
        with self._changed:
            lane = self._lanes[key] = _Lane(slot, grammar, stops, rest, list(tokens or ()))
            self._ask_to_open(key, lane)

    def advance(self, key: Key, tokens: list[int], *, rest: bytes = b"", drafts: list[int] | None = None) -> None:
        """`rest` and `tokens` came; compute the next masks."""
        with self._changed:
            lane = self._lanes[key]
            if not lane.tokens:
                lane.rest += rest
            lane.tokens += tokens
            if lane.failure is not None:
                return
            lane.waiting, lane.overdue = True, time.monotonic() + self._limits.mask_seconds
            if lane.opened:  # else they go with the next Open, the worker being replaced
                self._send(Advance(number=lane.number, rest=rest, tokens=tokens, drafts=drafts or []))

    def ready(self, key: Key) -> bool:
        """Whether the lane may take part in a round: `row` will not have to wait for a compilation."""
        with self._changed:
            lane = self._lanes[key]
            return lane.opened or lane.failure is not None

    def row(self, key: Key) -> "np.ndarray[Any, np.dtype[np.int32]]":
        """The mask of the next position; waits for it. It is overwritten after the next `advance`.

        Raises:
            ConstraintError: no token fits, or the worker could not do its work.
        """
        lane = self._wait(key, self._limits.mask_seconds + LATENESS)
        lane.report.mask_positions += 1
        lane.report.mask_upload_bytes += 4 * self._vocabulary.words
        row: np.ndarray[Any, np.dtype[np.int32]] = self.words[lane.slot, 0]
        return row

    def settle(self, key: Key, patience: float) -> None:
        """Wait until the report covers all tokens, at most `patience` seconds."""
        with contextlib.suppress(ConstraintError):
            self._wait(key, patience)

    def close(self, key: Key) -> Report | None:
        """A lane ends: its report. None if it was not open."""
        with self._changed:
            lane = self._lanes.pop(key, None)
            if lane is None:
                return None
            self._numbers.pop(lane.number, None)
            if lane.number:
                self._send(Close(number=lane.number))
            return lane.report

    def _wait(self, key: Key, patience: float) -> _Lane:
        with self._changed:
            lane = self._lanes[key]
            done = self._changed.wait_for(lambda: lane.failure is not None or not lane.waiting, patience)
            if lane.failure is not None:
                raise lane.failure
            if not done:
                raise ConstraintError("constraint_failed", "the mask did not come in time")
            return lane

    # Everything below holds the lock, or is the thread.

    def _send(self, message: ToWorker) -> None:
        if self._up and self._process is not None:
            with contextlib.suppress(OSError):  # the thread notices
                self._process.socket.sendall(frame(message))

    def _ask_to_open(self, key: Key, lane: _Lane) -> None:
        self._numbers.pop(lane.number, None)
        lane.number, self._next = self._next, self._next + 1
        self._numbers[lane.number] = key
        lane.opened, lane.waiting, lane.overdue = False, True, float("inf")
        self._send(
            Open(number=lane.number, slot=lane.slot, grammar=lane.grammar, stops=lane.stops, rest=lane.rest,
                 tokens=lane.tokens)
        )  # fmt: skip

    def _fail(self, lane: _Lane, code: Code, message: str) -> None:
        lane.failure, lane.waiting = ConstraintError(code, message), False
        self._changed.notify_all()
        self.wake()

    def _run(self) -> None:
        pause = POLL_SECONDS
        while True:
            self._worked = False
            reason = self._serve()
            with self._changed:
                if self._stopping:
                    return
                self._recover(reason)
                # One that worked is replaced at once; one that cannot start is not tried in a tight circle.
                pause = POLL_SECONDS if self._worked else min(2 * pause, LONGEST_PAUSE)
                if not self._worked:
                    self._changed.wait_for(lambda: self._stopping, pause)

    def _serve(self) -> str:
        """One worker's life; why it ended."""
        struct.pack_into(f"<{MARKERS}q", self._memory, 0, *[0] * MARKERS)
        begun = time.monotonic()
        try:
            process = Process(self._limits, self._descriptor)
        except OSError as error:
            return f"it cannot be started: {error}"
        with self._changed:
            self._process = process
        frames = Frames()
        reason = "it ended by itself"
        try:
            process.socket.sendall(frame(self._vocabulary.setup(self._limits, self._lanes_count, self._columns)))
            while True:
                if not select.select([process.socket], [], [], POLL_SECONDS)[0]:
                    if (late := self._late(begun)) is not None:
                        reason = late
                        break
                    continue
                data = process.socket.recv(1 << 20)
                if not data:
                    break
                for body in frames.push(data):
                    self._take(from_worker(body), begun)
                if (late := self._late(begun)) is not None:
                    reason = late
                    break
        except (OSError, ValueError) as error:
            reason = f"the connection to it failed: {error}"
        with self._changed:
            self._up, self._process = False, None
        return f"{reason} (status {process.kill()})"

    def _late(self, begun: float) -> str | None:
        now = time.monotonic()
        with self._changed:
            if not self._up:
                return None if now - begun < self._limits.start_seconds else "it took too long to start"
            late = [lane for lane in self._lanes.values() if lane.waiting and now > lane.overdue]
            if not late:
                return None
            for lane in late:
                lane.restarts = MOST_RESTARTS
            return "a grammar or a mask took too long"

    def _take(self, message: FromWorker, begun: float) -> None:
        with self._changed:
            if isinstance(message, Ready):
                self._up = self._worked = True
                log.info("constraint_worker_ready", seconds=round(time.monotonic() - begun, 3))
                for key, lane in self._lanes.items():
                    if lane.failure is None:
                        self._ask_to_open(key, lane)
                return
            asked_by = self._numbers.get(message.number)
            current = None if asked_by is None else self._lanes.get(asked_by)
            if current is None or current.failure is not None:
                return
            if isinstance(message, Began):
                current.overdue = time.monotonic() + self._limits.compile_seconds
            elif isinstance(message, Masked):
                self._masked(current, message)

    def _masked(self, lane: _Lane, masked: Masked) -> None:
        report = lane.report
        report.prepare_seconds += masked.prepare_seconds
        report.matcher_seconds += masked.matcher_seconds
        report.mask_seconds += masked.mask_seconds
        report.cache = report.cache or masked.cache
        if masked.code is not None:
            self._fail(lane, masked.code, masked.message)
            return
        first = not lane.opened
        report.complete, lane.columns = masked.complete, masked.columns
        lane.opened, lane.waiting, lane.restarts = True, False, 0
        self._changed.notify_all()
        if first:
            self.wake()

    def _recover(self, reason: str) -> None:
        """After a worker's end: fail what it was at, and keep the rest for the next one."""
        under_way = set(struct.unpack_from(f"<{MARKERS}q", self._memory))
        culprits = {key for key, lane in self._lanes.items() if lane.number in under_way}
        log.warning("constraint_worker_lost", reason=reason, lanes=len(self._lanes), working_on=len(culprits))
        for key, lane in self._lanes.items():
            if lane.failure is not None:
                continue
            lane.restarts += 1
            if key in culprits or lane.restarts > MOST_RESTARTS:
                self._fail(lane, "constraint_failed", f"the grammar exhausted its worker: {reason}")
            else:
                lane.opened, lane.waiting, lane.overdue = False, True, float("inf")
