"""A scripted engine that works in rounds, like the real one: `python -m tests.load.round_engine --config FILE`.

At most `lanes` requests run; each round sends one message with one token of every running lane. A prompt that says
`key N` is answered with `max_tokens` words that only that key has. Each round is printed with its time.
"""

import asyncio
import functools
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.protocol import LaneTokens, Limits, Progress, Submit, Timings, Tokens, pack_ids, unpack_ids
from tests.api.nano import frontend
from tests.api.scripted_engine import Engine, Script, main, read, say

INTERVAL = float(os.environ.get("ROUND_INTERVAL", "0.01"))  # seconds
LONGEST_READ = 8192  # tokens; longer prompts are not looked into
STRIDE = 7919


@functools.cache
def words() -> Sequence[int]:
    """Tokens that are one plain word each, so that every one of them comes out at once and whole."""
    return [number for number, text in enumerate(frontend().vocabulary) if re.fullmatch(rb" [a-z]{2,}", text)]


def answer_of(key: int, count: int) -> list[int]:
    """The tokens of the answer to `key`."""
    plain = words()
    return [plain[(key * STRIDE + 31 * index) % len(plain)] for index in range(count)]


def text_of(key: int, count: int) -> str:
    """The same as text."""
    return b"".join(frontend().vocabulary[one] for one in answer_of(key, count)).decode()


@dataclass
class Lane:
    """A running request."""

    writer: asyncio.StreamWriter
    id: int
    prompt: int
    tokens: list[int]
    done: asyncio.Event
    sent: int = 0


class RoundEngine(Engine):
    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.free = asyncio.Semaphore(limits.lanes)
        self.lanes: list[Lane] = []
        self.work = asyncio.create_task(self.decode())

    async def answer(self, writer: asyncio.StreamWriter, submit: Submit) -> None:
        prompt = unpack_ids(submit.token_ids).tolist()
        say("submit", id=submit.id, prompt=len(prompt))
        key = 0
        if len(prompt) <= LONGEST_READ:
            text = b"".join(frontend().vocabulary[one] for one in prompt).decode()
            key = int(re.findall(r"key (\d+)", text)[-1])
        async with self.free:
            say("start", id=submit.id, key=key)
            self.send(writer, Progress(id=submit.id, processed=len(prompt), total=len(prompt)))
            lane = Lane(writer, submit.id, len(prompt), answer_of(key, submit.max_tokens), asyncio.Event())
            self.lanes.append(lane)
            self.running = len(self.lanes)
            try:
                await lane.done.wait()
            finally:
                if lane in self.lanes:
                    self.lanes.remove(lane)

    async def play(self, writer: asyncio.StreamWriter, submit: Submit, script: Script, prompt: int) -> None:
        raise AssertionError("rounds play all lanes")

    async def decode(self) -> None:
        """Send rounds for ever."""
        while True:
            await asyncio.sleep(INTERVAL)
            if not self.lanes:
                continue
            self.rounds += 1
            for writer in {lane.writer for lane in self.lanes}:
                mine = [lane for lane in self.lanes if lane.writer is writer]
                message = Tokens(round=self.rounds, lanes=tuple(self.next(lane) for lane in mine))
                say("round", ids=[lane.id for lane in mine])
                self.send(writer, message)
            for lane in [lane for lane in self.lanes if lane.sent == len(lane.tokens)]:
                self.lanes.remove(lane)
                lane.done.set()

    def next(self, lane: Lane) -> LaneTokens:
        token = lane.tokens[lane.sent]
        lane.sent += 1
        if lane.sent < len(lane.tokens):
            return LaneTokens(id=lane.id, token_ids=pack_ids([token]))
        timings = Timings(queue=0.0, prefill=0.0, decode=0.0, prefill_tokens=lane.prompt, cached_tokens=0)
        return LaneTokens(id=lane.id, token_ids=pack_ids([token]), finish="length", timings=timings)


if __name__ == "__main__":
    asyncio.run(main(read(Path(sys.argv[2])), waits=False, make=RoundEngine))
