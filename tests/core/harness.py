"""A loop without sockets: requests in, messages out, one cycle at a time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from engine.constraint.masks import Masks
from engine.core.intake import Intake
from engine.core.lane import Request
from engine.core.loop import Arrived, Asked, Closed, Loop
from engine.core.scheduler import Scheduler
from engine.memory import PagePool, StatePool, pages_for
from engine.protocol import (
    Boot,
    Cancel,
    EngineMessage,
    LaneTokens,
    Progress,
    Rejected,
    Sampling,
    Submit,
    Tokens,
    pack_ids,
    unpack_ids,
)
from engine.rounds import Runtime, Sampler
from tests.rounds.fake_model import FakeModel

TINY_VOCABULARY = [bytes([97 + i % 26]) for i in range(64)]


@dataclass
class Answer:
    """What a request got, in order of arrival."""

    tokens: list[int] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    parts: list[LaneTokens] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    rejected: Rejected | None = None

    @property
    def last(self) -> LaneTokens:
        """The final part."""
        assert self.parts
        return self.parts[-1]

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.rejected is not None or self.finish is not None

    @property
    def finish(self) -> str | None:
        """How it ended, if it has."""
        return self.parts[-1].finish if self.parts else None

    def add(self, message: Progress | Rejected | tuple[int, LaneTokens]) -> None:
        """File one message."""
        assert self.rejected is None
        assert self.finish is None, "a message after the finish"
        match message:
            case Progress():
                self.progress.append(message)
            case Rejected():
                self.rejected = message
            case (number, part):
                self.parts.append(part)
                self.rounds.append(number)
                self.tokens += unpack_ids(part.token_ids).tolist()


def submit(prompt: Sequence[int], max_tokens: int = 8, *, id: int = 1, **fields: Any) -> Submit:
    """A request; sampling settings may be given directly, `temperature` is 0 otherwise."""
    names = Sampling.__struct_fields__
    sampling = Sampling(**{"temperature": 0.0, **{name: fields.pop(name) for name in names if name in fields}})
    return Submit(id=id, token_ids=pack_ids(prompt), sampling=sampling, max_tokens=max_tokens, **fields)


@dataclass
class Harness:
    """Small numbers by default. `now` is the clock."""

    model: FakeModel = field(default_factory=FakeModel)
    lanes: int = 2
    max_context: int = 512
    kv_capacity: int = 1024
    max_pending: int = 16
    output_reserve: int = 256
    columns_together: bool = False
    prefill_chunk: int = 128
    vocabulary: Sequence[bytes] = field(default_factory=lambda: TINY_VOCABULARY)
    masks: Masks | None = None
    now: float = 1000.0
    answers: dict[tuple[int, int], Answer] = field(default_factory=lambda: defaultdict(Answer))
    sent: list[tuple[int, EngineMessage]] = field(default_factory=list)
    announced: list[Boot] = field(default_factory=list)

    def __post_init__(self) -> None:
        device = torch.device("cpu")
        pages = pages_for(self.kv_capacity)
        pools = self.model.new_pools(pages, self.lanes, kv_dtype=torch.bfloat16, state_dtype=torch.float32)
        self.loop = Loop(
            Runtime(
                self.model, pools, Sampler(self.lanes, self.model.token_count, device), device, self.columns_together
            ),
            Scheduler(
                PagePool(pages),
                StatePool(self.lanes),
                max_pending=self.max_pending,
                output_reserve=self.output_reserve,
            ),
            send=self._send,
            announce=self.announced.append,
            disconnect=self.close,
            prefill_chunk=self.prefill_chunk,
            drain_seconds=20,
            masks=self.masks,
            clock=lambda: self.now,
        )
        self.scheduler = self.loop.scheduler
        self.intake = Intake(self.max_context, 600, self.vocabulary, self.masks is not None)

    def submit(self, message: Submit, connection: int = 1) -> Answer:
        """Put a request in the inbox, as the door does."""
        answer = self.answers[connection, message.id] = Answer()
        result = self.intake.read(connection, message)
        if isinstance(result, Request):
            self.loop.inbox.put(Arrived(result))
        else:
            answer.add(result)
        return answer

    def read(self, message: Submit, connection: int = 1) -> Request:
        """A request that is right."""
        result = self.intake.read(connection, message)
        assert isinstance(result, Request)
        return result

    def cancel(self, id: int, connection: int = 1) -> None:
        """Ask for a cancel."""
        self.loop.inbox.put(Asked(connection, Cancel(id=id)))

    def close(self, connection: int) -> None:
        """Drop a connection."""
        self.loop.inbox.put(Closed(connection))

    def cycle(self, count: int = 1) -> None:
        """Run so many cycles. The inbox must not be empty when nothing runs, or this would sleep."""
        for _ in range(count):
            assert not self.scheduler.idle or not self.loop.inbox.empty()
            self.loop.cycle()
            self.scheduler.check()

    def finish(self, most: int = 20_000) -> None:
        """Run until nothing is left."""
        while not self.scheduler.idle or not self.loop.inbox.empty():
            self.cycle()
            most -= 1
            assert most, "this does not end"
        self.scheduler.check()

    def run(self, *messages: Submit) -> list[Answer]:
        """Answers of requests that start together."""
        answers = [self.submit(message) for message in messages]
        self.finish()
        return answers

    def _send(self, connection: int, message: EngineMessage) -> None:
        self.sent.append((connection, message))
        match message:
            case Progress() | Rejected():
                self.answers[connection, message.id].add(message)
            case Tokens():
                assert message.lanes
                for part in message.lanes:
                    self.answers[connection, part.id].add((message.round, part))


def engine_files(folder: Path) -> SimpleNamespace:
    """Where a test engine keeps its things."""
    return SimpleNamespace(config=folder / "engine.json", socket=folder / "s", artifact=folder / "fake.json")
