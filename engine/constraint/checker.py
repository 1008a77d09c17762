"""The API's side: compile a constraint once, within bounds, before the engine hears of it."""

import asyncio
import hashlib
import select
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from engine.constraint.constraint import MAX_GRAMMAR_BYTES, Constraint
from engine.constraint.errors import ConstraintError
from engine.constraint.messages import COMPILING, Began, Check, Checked, Frames, Ready, frame, from_worker
from engine.constraint.process import Limits, Process, Vocabulary
from engine.log import get_logger

log = get_logger(__name__)

REMEMBERED = 1024


class Checker:
    """Compiles in processes that are started when first needed, at most two at once. Use it from one event loop."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits | None = None) -> None:
        self._vocabulary, self._limits = vocabulary, limits or Limits()
        self._pool = ThreadPoolExecutor(COMPILING, thread_name_prefix="constraint")
        self._own = threading.local()
        self._processes: set[Process] = set()
        self._known: OrderedDict[bytes, asyncio.Future[ConstraintError | None]] = OrderedDict()

    async def check(self, constraint: Constraint) -> None:
        """Return if the constraint compiles. What is known is not compiled again.

        Raises:
            ConstraintError: it does not, or takes too long or too much memory.
        """
        source = constraint.source(after_thought=True)
        if len(source) > MAX_GRAMMAR_BYTES:
            raise constraint.refusal(None, f"the constraint is {len(source)} bytes; at most {MAX_GRAMMAR_BYTES}")
        key = hashlib.sha256(source).digest()
        found = self._known.get(key)
        if found is None:
            found = asyncio.get_running_loop().run_in_executor(self._pool, self._check, constraint, source)
            self._known[key] = found
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        try:
            error = await asyncio.shield(found)
        except Exception:
            self._known.pop(key, None)
            raise
        if error is not None:
            if error.code == "constraint_failed":
                self._known.pop(key, None)  # another time it may be better
            raise error

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in list(self._processes):
            process.kill()

    def _check(self, constraint: Constraint, source: bytes) -> ConstraintError | None:
        """On a thread of the pool, which has a process of its own."""
        try:
            process = self._process()
        except (OSError, TimeoutError) as error:
            log.error("constraint_worker_not_started", reason=str(error))
            return ConstraintError("constraint_failed", "the server cannot compile constraints now; its log says why")
        begun = time.monotonic()
        try:
            process.socket.sendall(frame(Check(number=1, grammar=source)))
            checked = self._answer(process, self._limits.compile_seconds)
        except (OSError, ValueError, TimeoutError) as error:
            self._drop(process)
            log.warning("constraint_too_expensive", kind=constraint.kind, bytes=len(source), reason=str(error),
                        seconds=round(time.monotonic() - begun, 3))  # fmt: skip
            return constraint.refusal(
                None,
                f"compiling it takes more than {self._limits.compile_seconds:g} s or too much memory; make it simpler",
            )
        if checked.code is None:
            return None
        return constraint.refusal(checked.code, checked.message)

    def _process(self) -> Process:
        process: Process | None = getattr(self._own, "process", None)
        if process is None:
            process = self._own.process = Process(self._limits)
            self._own.frames = Frames()
            self._processes.add(process)
            try:
                process.socket.sendall(frame(self._vocabulary.setup(self._limits)))
                self._answer(process, self._limits.start_seconds)
            except (OSError, ValueError, TimeoutError):
                self._drop(process)
                raise
        return process

    def _drop(self, process: Process) -> None:
        self._own.process = None
        self._processes.discard(process)
        process.kill()

    def _answer(self, process: Process, seconds: float) -> Checked:
        """The worker's verdict; for a worker that starts, that it has.

        Raises:
            TimeoutError: it takes longer than `seconds`.
            OSError: it is gone.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([process.socket], [], [], left)[0]:
                break
            data = process.socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the worker ended")
            for body in self._own.frames.push(data):
                match from_worker(body):
                    case Checked() as checked:
                        return checked
                    case Ready():
                        return Checked(number=0)
                    case Began():
                        end = time.monotonic() + seconds
        raise TimeoutError(f"no answer within {seconds:g} s")
