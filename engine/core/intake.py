"""The front door: turns a `Submit` into a `Request`, or says why not. No work is done before every field is checked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.core.lane import Constrained, Request
from engine.core.stops import StopMatcher
from engine.core.thought import Thought, effective_budget
from engine.protocol import Finish, ProtocolError, Rejected, Sampling, Submit, Thinking, unpack_ids
from kernels.sampling import MAX_CANDIDATES

MAX_LOGPROBS = 20
MAX_STOP_IDS = 256
MAX_STOP_STRINGS = 256
MAX_STOP_BYTES = 4096
MAX_CHECKPOINTS = 64
MAX_CLOSE_BYTES = 64
MAX_WRAP_UP_TOKENS = 4096
MAX_CONSTRAINT_BYTES = 8 * 1024**2

Code = Literal["context_length", "invalid", "not_supported"]

RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, MAX_CANDIDATES),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "seed": (-(2**63), 2**64 - 1),
}


class RefusedError(Exception):
    """A request that will get no tokens, with the code for the client."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code


@dataclass(frozen=True)
class Intake:
    """What a request is checked against. `vocabulary[id]` is the bytes of a token; its length is the token count."""

    max_context: int
    wait_seconds: float
    vocabulary: Sequence[bytes]
    constraints: bool = False  # whether there are masks

    def read(self, connection: int, submit: Submit) -> Request | Rejected:
        """The request of a `Submit`, or its refusal."""
        try:
            return self._read(connection, submit)
        except RefusedError as refused:
            return Rejected(id=submit.id, code=refused.code, message=str(refused))

    def _read(self, connection: int, submit: Submit) -> Request:
        self._supported(submit)
        prompt = self._prompt(submit.token_ids)
        _sampling(submit.sampling)
        _range("max_tokens", submit.max_tokens, 0, math.inf)
        _range("logprobs", submit.logprobs, 0, MAX_LOGPROBS)
        if submit.deadline_seconds is not None:
            _range("deadline_seconds", submit.deadline_seconds, 0, math.inf)
        _range("number of stop_ids", len(submit.stop_ids), 0, MAX_STOP_IDS)
        for stop_id in submit.stop_ids:
            _range("stop_ids", stop_id, 0, len(self.vocabulary) - 1)
        _range("number of checkpoints", len(submit.checkpoints), 0, MAX_CHECKPOINTS)
        for checkpoint in submit.checkpoints:
            _range("checkpoints", checkpoint, 0, len(prompt))
        left = self.max_context - len(prompt)
        finish: Finish = "length" if submit.max_tokens <= left else "context"
        limit = min(submit.max_tokens, left)
        wait = self.wait_seconds
        return Request(
            connection=connection,
            id=submit.id,
            prompt=prompt,
            sampling=submit.sampling,
            limit=limit,
            limit_finish=finish,
            stop_ids=frozenset(submit.stop_ids),
            stops=self._stops(submit.stop_strings),
            thought=None if submit.thinking is None else self._thought(submit.thinking, limit),
            logprobs=submit.logprobs,
            constraint=self._constraint(submit),
            wait_seconds=wait if submit.deadline_seconds is None else min(wait, submit.deadline_seconds),
        )

    def _supported(self, submit: Submit) -> None:
        if submit.constraint is not None and not self.constraints:
            raise RefusedError("not_supported", "constraint: this engine does not constrain output; leave it out")
        if submit.media:
            raise RefusedError("not_supported", f"media: this version takes text only; {len(submit.media)} were sent")

    def _constraint(self, submit: Submit) -> Constrained | None:
        if submit.constraint is None:
            return None
        _range("bytes of constraint", len(submit.constraint), 1, MAX_CONSTRAINT_BYTES)
        if not submit.stop_ids:
            raise RefusedError("invalid", "stop_ids is empty; an answer under a constraint ends with one of them")
        return Constrained(submit.constraint, begin=None if submit.thinking is not None else 0)

    def _prompt(self, packed: bytes) -> list[int]:
        length = len(packed) // 4
        if length > self.max_context:
            raise RefusedError(
                "context_length", f"the prompt is {length} tokens; this engine takes at most {self.max_context}"
            )
        return self._ids("the prompt", packed, self.max_context)

    def _ids(self, name: str, packed: bytes, most: int) -> list[int]:
        try:
            ids: np.ndarray = unpack_ids(packed)
        except ProtocolError as error:
            raise RefusedError("invalid", f"{name}: {error}") from error
        if not len(ids):
            raise RefusedError("invalid", f"{name} is empty; send at least one token")
        if len(ids) > most:
            raise RefusedError("invalid", f"{name} is {len(ids)} tokens; at most {most} are taken")
        if (worst := int(ids.max())) >= len(self.vocabulary):
            raise RefusedError("invalid", f"token id {worst} is not below {len(self.vocabulary)}, the number of tokens")
        found: list[int] = ids.tolist()
        return found

    def _thought(self, thinking: Thinking, limit: int) -> Thought:
        _range("bytes of thinking.close", len(thinking.close), 1, MAX_CLOSE_BYTES)
        if thinking.budget is None:
            return Thought(thinking.close, self.vocabulary)
        _range("thinking.budget", thinking.budget, 1, math.inf)
        wrap_up = self._ids("thinking.wrap_up", thinking.wrap_up, MAX_WRAP_UP_TOKENS)
        if thinking.close not in b"".join(self.vocabulary[token] for token in wrap_up):
            raise RefusedError("invalid", f"thinking.wrap_up does not hold thinking.close, {thinking.close!r}")
        budget = effective_budget(thinking.budget, limit, len(wrap_up))
        return Thought(thinking.close, self.vocabulary, budget=budget, wrap_up=wrap_up)

    def _stops(self, strings: Sequence[bytes]) -> StopMatcher | None:
        _range("number of stop_strings", len(strings), 0, MAX_STOP_STRINGS)
        for string in strings:
            _range("bytes of a stop string", len(string), 1, MAX_STOP_BYTES)
        return StopMatcher(strings, self.vocabulary) if strings else None


def _sampling(sampling: Sampling) -> None:
    for name, (low, high) in RANGES.items():
        _range(name, getattr(sampling, name), low, high)


def _range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or value == math.inf:  # NaN fails the first
        upper = f" and at most {high}" if high != math.inf else ""
        raise RefusedError("invalid", f"{name} is {value}; must be at least {low}{upper}")
