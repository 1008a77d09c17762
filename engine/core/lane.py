"""A request, and the lane it runs on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.core.stops import StopMatcher
from engine.core.thought import Thought
from engine.memory import PageAccount
from engine.protocol import Finish, Sampling, Timings
from engine.rounds.model import Span

Key = tuple[int, int]  # connection, request id


@dataclass(slots=True)
class Constrained:
    """A request's constraint: the grammar, and from where on the answer must follow it.

    `begin` is an index in `generated`, None while the thought is open; `rest` is text before it that counts too.
    """

    grammar: bytes
    begin: int | None
    rest: bytes = b""


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """What was asked for, and what has been produced. Outlives its lane when it is paused."""

    connection: int
    id: int
    prompt: list[int]
    sampling: Sampling
    limit: int  # tokens to produce at most
    limit_finish: Finish  # which bound that is: length, or context
    stop_ids: frozenset[int] = frozenset()
    stops: StopMatcher | None = None
    thought: Thought | None = None  # the prompt ends inside one
    logprobs: int = 0
    constraint: Constrained | None = None
    wait_seconds: float  # longest wait for a lane
    generated: list[int] = field(default_factory=list)
    ticket: int = -1  # order of admission; a pause keeps it
    arrived: float = 0.0
    admitted: float = 0.0
    first_token: float = 0.0

    @property
    def key(self) -> Key:
        """Unique among live requests."""
        return self.connection, self.id

    @property
    def target(self) -> int:
        """Tokens that must be in the cache before the next one is sampled by a round.

        After a pause that includes what had been generated, and always what was inserted, but for the newest token,
        which the round itself runs.
        """
        return len(self.prompt) + max(0, len(self.generated) - 1)

    @property
    def most_columns(self) -> int:
        """Columns ever written: the last sampled token is never run."""
        return len(self.prompt) + max(0, self.limit - 1)

    def append(self, token: int) -> tuple[Finish | None, bytes]:
        """Add `token` to the answer: whether it ends it, and the stop string that it completed."""
        self.generated.append(token)
        if self.thought is not None:
            self.thought.push(token)
        if token in self.stop_ids:
            return "stop_id", b""
        if self.stops is not None and (stop := self.stops.push(token)) is not None:
            return "stop_string", stop
        if len(self.generated) >= self.limit:
            return self.limit_finish, b""
        return None, b""

    def timings(self, now: float) -> Timings:
        """Seconds spent waiting, until the first token, and after it."""
        admitted = self.admitted if self.ticket >= 0 else now
        first = self.first_token or now
        return Timings(
            queue=admitted - self.arrived,
            prefill=first - admitted,
            decode=now - first,
            prefill_tokens=len(self.prompt) if self.first_token else 0,
        )


@dataclass(slots=True, eq=False)
class Lane:
    """A running request: `slot` is its state image, `frontier` tokens of it are in the cache."""

    request: Request
    slot: int
    account: PageAccount
    frontier: int = 0

    @property
    def prefilling(self) -> bool:
        """Whether chunks are still to be run."""
        return self.frontier < self.request.target or not self.request.generated

    def span(self, length: int) -> Span:
        """The next `length` tokens to run. Their pages must be leased."""
        return Span(self.slot, self.frontier, self.account.pages, self._tokens(self.frontier, self.frontier + length))

    def _tokens(self, begin: int, end: int) -> list[int]:
        prompt: Sequence[int] = self.request.prompt
        size = len(prompt)
        return [*prompt[begin:end], *self.request.generated[max(0, begin - size) : max(0, end - size)]]
