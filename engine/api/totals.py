"""What the engines of this process have done, in sums that survive an engine's restart (spec/serving.md §5.3)."""

import time
from collections import deque
from dataclasses import dataclass, field, replace

from engine.api.generation import Account
from engine.protocol import Statistics

RECENT = 10  # requests


@dataclass(frozen=True)
class Recent:
    """How one request ended. Nothing of what it said. `ended` is Unix time, the others are seconds from arrival."""

    ended: float
    protocol: str
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    generated: int
    first_token: float | None
    seconds: float


@dataclass
class Totals:
    """Monotonic counters and the pace of the last request. `ready` is `time.monotonic` of the first readiness."""

    ready: float | None = None
    prompt_tokens: int = 0
    generated_tokens: int = 0
    rounds: int = 0
    row_rounds: int = 0
    decode_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    reused_tokens: int = 0
    last_request: dict[str, float] | None = None
    recent: deque[Recent] = field(default_factory=lambda: deque(maxlen=RECENT))

    def statistics(self, before: Statistics, now: Statistics) -> None:
        """Add what happened between two reports of one engine."""
        for name in ("prompt_tokens", "generated_tokens", "rounds", "prefill_seconds", "decode_seconds"):
            grown = max(0, getattr(now, name) - getattr(before, name))
            setattr(self, name, getattr(self, name) + grown)

    def decoded(self, rows: int, tokens: int) -> None:
        """One round gave `rows` requests `tokens` tokens together, first tokens not counted."""
        self.row_rounds += rows
        self.decode_tokens += tokens

    def ended(self, account: Account) -> None:
        """One request is over; an answer of one token says nothing about pace."""
        self.reused_tokens += account.cached_tokens
        if account.generated < 2 or account.first_token is None or account.last_token is None:
            return
        wall = account.last_token - account.first_token
        self.last_request = {
            "completion_tokens": account.generated,
            "generation_wall_seconds": round(wall, 6),
            "inter_token_seconds": round(wall / (account.generated - 1), 9),
            "decode_host_seconds": 0.0,  # not measured
        }

    def remember(self, account: Account, protocol: str, outcome: str) -> None:
        """Keep how a request ended, for the status page."""
        first = None if account.first_token is None else account.first_token - account.arrived
        self.recent.append(
            Recent(
                ended=time.time(),
                protocol=protocol,
                outcome=outcome,
                prompt_tokens=account.prompt_tokens,
                cached_tokens=account.cached_tokens,
                generated=account.generated,
                first_token=first,
                seconds=(account.ended or time.monotonic()) - account.arrived,
            )
        )

    @property
    def uptime(self) -> float:
        """Seconds since the first readiness."""
        return 0.0 if self.ready is None else time.monotonic() - self.ready

    def copy(self) -> "Totals":
        """The sums of this moment."""
        return replace(self)
