"""The worker process: `python -m engine.constraint.worker SOCKET_FD MEMORY_FD ADDRESS_SPACE_BYTES`.

Everything that a client's grammar can make slow, large or crash happens here. The process bounds its own address space
and processor time; its parent bounds the time of every job, ends the process when one takes too long, and starts
another. Masks are computed on the main thread, compilations on two others (the library lets go of the interpreter for
both), so that a cold grammar does not hold up the lanes that run.
"""

import contextlib
import ctypes
import hashlib
import mmap
import os
import resource
import socket
import struct
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import llguidance

from engine.constraint.errors import Code
from engine.constraint.messages import (
    COMPILING,
    HEADER_BYTES,
    Advance,
    Began,
    Check,
    Checked,
    Close,
    Frames,
    FromWorker,
    Masked,
    Open,
    Ready,
    Setup,
    frame,
    to_worker,
)

SMALLEST_ENTRY = 64 * 1024
ALLOWANCE = 4  # processor seconds a job may use, as a multiple of its time: a backstop if the parent is gone or stuck


@dataclass
class _Lane:
    slot: int
    stops: list[int]
    rest: bytes
    tokens: list[int]
    matcher: llguidance.LLMatcher | None = None
    closed: bool = False


class _Failed(Exception):  # noqa: N818 - carries a code to the parent
    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code


class _Vocabulary:
    """What the library wants to know of a tokenizer."""

    def __init__(self, setup: Setup) -> None:
        self.tokens, self.special_token_ids = setup.tokens, setup.special
        self.eos_token_id, self.bos_token_id = setup.end, None
        special = set(setup.special)
        self._ids = {token: number for number, token in enumerate(setup.tokens) if number not in special}
        self._longest = max(map(len, setup.tokens))

    def __call__(self, text: bytes) -> list[int]:
        """Ids of `text`, longest first. Grammars leave the tokenization to the model, so this is for `rest` alone."""
        found = []
        while text:
            for length in range(min(len(text), self._longest), 0, -1):
                if (number := self._ids.get(text[:length])) is not None:
                    found.append(number)
                    text = text[length:]
                    break
            else:
                raise _Failed("constraint_failed", f"no token stands for {text[:1]!r}")
        return found


class Worker:
    """One process's work. `connection` and `memory` are the parent's."""

    def __init__(self, connection: socket.socket, memory: mmap.mmap | None) -> None:
        self._connection, self._memory = connection, memory
        self._lock = threading.RLock()
        self._lanes: dict[int, _Lane] = {}
        self._cache: OrderedDict[bytes, tuple[llguidance.LLMatcher, int]] = OrderedDict()
        self._building: dict[bytes, list[tuple[int, float]]] = {}
        self._threads = ThreadPoolExecutor(COMPILING, initializer=self._claim_marker)
        self._marker = threading.local()
        self._marker.place = 0  # of this thread, the main one
        self._markers = iter(range(1, 1 + COMPILING))
        self._address = 0
        if memory is not None:
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def run(self) -> None:
        """Until the parent closes the socket."""
        frames = Frames()
        while data := self._connection.recv(1 << 20):
            for body in frames.push(data):
                match to_worker(body):
                    case Setup() as setup:
                        self._set_up(setup)
                    case Check() as check:
                        self._check(check)
                    case Open() as opened:
                        self._open(opened)
                    case Advance() as advance:
                        self._advance(advance)
                    case Close(number=number):
                        with self._lock:
                            if (lane := self._lanes.pop(number, None)) is not None:
                                lane.closed = True

    def _send(self, message: FromWorker) -> None:
        with self._lock:
            self._connection.sendall(frame(message))

    def _mark(self, number: int) -> None:
        """Tell the parent what this thread does, in case this process does not survive it; 0 is nothing."""
        if self._memory is not None:
            struct.pack_into("<q", self._memory, 8 * self._marker.place, number)

    def _claim_marker(self) -> None:
        self._marker.place = next(self._markers)

    def _bound_time(self) -> None:
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used + ALLOWANCE * self._setup.cpu_seconds) + 2, hard))

    def _set_up(self, setup: Setup) -> None:
        begun = time.perf_counter()
        self._setup = setup
        self._words = (len(setup.tokens) + 31) // 32
        self._nothing = bytes(4 * self._words)
        self._vocabulary = _Vocabulary(setup)
        # The library's own slices cost seconds of start for a large vocabulary, and pay off in JSON strings.
        wrapped = llguidance.TokenizerWrapper(self._vocabulary)
        self._tokenizer = llguidance.LLTokenizer(wrapped, slices=llguidance.LLTokenizer.general_slices())
        # How much one compilation and one mask may cost: about 20 ms and 50 ms.
        self._limits = llguidance.LLParserLimits(
            max_items_in_row=2_000,
            initial_lexer_fuel=1_000_000,
            step_lexer_fuel=500_000,
            step_max_items=200_000,
            max_lexer_states=65_536,
            max_grammar_size=500_000,
            verbose_errors=False,
        )
        self._send(Ready(seconds=time.perf_counter() - begun))

    # Compiling

    def _compile(self, grammar: bytes) -> llguidance.LLMatcher:
        """A matcher at the beginning of its text.

        Raises:
            _Failed: the grammar is wrong, too large, or fits nothing.
        """
        matcher = llguidance.LLMatcher(
            self._tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar.decode()), log_level=0, limits=self._limits
        )
        if not matcher.is_error():
            first = matcher.compute_bitmask()
            if not matcher.is_error() and not any(first):
                raise _Failed("unsatisfiable_json_schema", "nothing can begin an answer that fits")
        if matcher.is_error():
            message = matcher.get_error().strip().splitlines()[0]
            message = message.partition("failed to compile JSON schema: ")[2] or message
            if message.startswith("panic"):  # an assertion of the library about sizes
                message = "it is too large to compile; make it simpler"
            code: Code = "unsatisfiable_json_schema" if "Unsatisfiable" in message else "invalid_grammar"
            raise _Failed(code, message[:400])
        return matcher

    def _check(self, check: Check) -> None:
        self._bound_time()
        self._send(Began(number=check.number))
        try:
            self._compile(check.grammar)
        except _Failed as failed:
            self._send(Checked(number=check.number, message=str(failed), code=failed.code))
        else:
            self._send(Checked(number=check.number))

    def _open(self, opened: Open) -> None:
        begun = time.perf_counter()
        lane = _Lane(opened.slot, opened.stops, opened.rest, opened.tokens)
        key = hashlib.sha256(opened.grammar).digest()
        with self._lock:
            self._lanes[opened.number] = lane
            if key in self._cache:
                self._cache.move_to_end(key)
                self._begin(opened.number, self._cache[key][0], "hit", begun)
            elif key in self._building:
                self._building[key].append((opened.number, begun))
            else:
                self._building[key] = []
                self._threads.submit(self._build, key, opened, begun)

    def _build(self, key: bytes, opened: Open, begun: float) -> None:
        """On a thread of its own."""
        self._mark(opened.number)
        self._bound_time()
        self._send(Began(number=opened.number))
        before = _resident()
        try:
            matcher = self._compile(opened.grammar)
        except Exception as error:
            failed = error if isinstance(error, _Failed) else _Failed("constraint_failed", repr(error))
            with self._lock:
                for number, _ in [(opened.number, begun), *self._building.pop(key)]:
                    self._send(Masked(number=number, message=str(failed), code=failed.code))
        else:
            size = max(SMALLEST_ENTRY, _resident() - before, 4 * len(opened.grammar))
            with self._lock:
                self._cache[key] = matcher, size
                while len(self._cache) > 1 and sum(each for _, each in self._cache.values()) > self._setup.cache_bytes:
                    self._cache.popitem(last=False)
                self._begin(opened.number, matcher, "built", begun)
                for number, since in self._building.pop(key):
                    self._begin(number, matcher, "waited", since)
        finally:
            self._mark(0)

    def _begin(self, number: int, compiled: llguidance.LLMatcher, cache: str, begun: float) -> None:
        lane = self._lanes.get(number)
        if lane is None:  # closed meanwhile
            return
        lane.matcher = compiled.deep_copy()
        seconds = time.perf_counter() - begun
        self._answer(number, lane, lane.rest, lane.tokens, cache=cache, prepare=seconds)

    # Masks

    def _advance(self, advance: Advance) -> None:
        with self._lock:
            lane = self._lanes.get(advance.number)
        if lane is not None:
            self._answer(advance.number, lane, advance.rest, advance.tokens, advance.drafts)

    def _answer(
        self,
        number: int,
        lane: _Lane,
        rest: bytes,
        tokens: list[int],
        drafts: Sequence[int] = (),
        *,
        cache: str = "",
        prepare: float = 0.0,
    ) -> None:
        self._mark(number)
        self._bound_time()
        begun = time.perf_counter()
        try:
            matcher = self._consume(lane, rest, tokens)
            consumed = time.perf_counter()
            columns = self._write(lane, matcher, drafts)
            masked = Masked(
                number=number,
                columns=columns,
                complete=matcher.is_accepting(),
                cache=cache,
                prepare_seconds=prepare,
                matcher_seconds=consumed - begun,
                mask_seconds=time.perf_counter() - consumed,
            )
        except _Failed as failed:
            masked = Masked(number=number, message=str(failed), code=failed.code, cache=cache, prepare_seconds=prepare)
        self._mark(0)
        self._send(masked)

    def _consume(self, lane: _Lane, rest: bytes, tokens: list[int]) -> llguidance.LLMatcher:
        matcher = lane.matcher
        if matcher is None:
            raise _Failed("constraint_failed", "tokens came before the grammar was compiled")
        for ids, what in ((self._vocabulary(rest), "text after the thought"), (tokens, "answer")):
            taken = matcher.try_consume_tokens(ids) if ids else 0
            if matcher.is_error():
                raise _Failed("constraint_failed", f"the grammar became too complex: {matcher.get_error()[:200]}")
            if taken < len(ids):
                code: Code = "constraint_dead_end" if what != "answer" else "constraint_failed"
                raise _Failed(code, f"the {what} does not fit the grammar")
        return matcher

    def _write(self, lane: _Lane, matcher: llguidance.LLMatcher, drafts: Sequence[int]) -> int:
        """Masks after the tokens so far and after each draft that fits; how many."""
        written = self._write_one(lane, matcher, 0)
        taken = 0
        for draft in drafts[: self._setup.columns - 1]:
            if draft in lane.stops or matcher.try_consume_tokens([draft]) != 1:
                break
            taken += 1
            self._write_one(lane, matcher, taken)
        if taken:
            matcher.rollback(taken)
        if matcher.is_error():
            raise _Failed("constraint_failed", f"the grammar became too complex: {matcher.get_error()[:200]}")
        if not written:
            raise _Failed("constraint_dead_end", "no token can go on from here, and the answer is not complete")
        return 1 + taken

    def _write_one(self, lane: _Lane, matcher: llguidance.LLMatcher, column: int) -> bool:
        """One mask; whether anything is allowed."""
        if self._memory is None:
            raise _Failed("constraint_failed", "this worker has no memory for masks")
        begin = HEADER_BYTES + 4 * self._words * (lane.slot * self._setup.columns + column)
        matcher.unsafe_compute_mask_ptr(self._address + begin, 4 * self._words)
        may_end = bool(self._memory[begin + self._setup.end // 8] >> (self._setup.end % 8) & 1)
        for token in {self._setup.end, *lane.stops}:
            place, bit = begin + token // 8, 1 << (token % 8)
            if may_end and token in lane.stops:
                self._memory[place] |= bit
            else:
                self._memory[place] &= ~bit
        return self._memory[begin : begin + 4 * self._words] != self._nothing


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - once a compilation
        return int(file.read().split()[1]) * resource.getpagesize()


def main() -> None:
    """Take the descriptors that the parent left open, and work."""
    descriptor, memory_descriptor, address_space = (int(argument) for argument in sys.argv[1:4])
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory = None
    if memory_descriptor >= 0:
        memory = mmap.mmap(memory_descriptor, 0)
    worker = Worker(socket.socket(fileno=descriptor), memory)
    with contextlib.suppress(ConnectionError):
        worker.run()
    os._exit(0)  # a compilation under way must not hold up the end


if __name__ == "__main__":
    main()
