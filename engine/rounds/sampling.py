"""What sampling remembers between rounds: how often each lane generated each id."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.protocol import Sampling, TokenLogprobs
from kernels.sampling import SamplingRows, allow, log_probabilities, sample


class NotFiniteError(Exception):
    """The model gave NaN or infinite logits."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What to sample for one lane: `position` is the index of the new token in its sequence.

    `mask()` gives the int32 words of `kernels.sampling.allow` for this row. It is called once, after the forward pass,
    so that the mask may be computed meanwhile; an exception that it raises is the row's result. `forbidden` ids cannot
    come, whatever the mask says.
    """

    slot: int
    position: int
    purpose: int
    sampling: Sampling
    logprobs: int = 0
    mask: "Callable[[], np.ndarray[Any, np.dtype[np.int32]]] | None" = None
    forbidden: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """One sampled token, with its log-probabilities when they were asked for."""

    token: int
    logprobs: TokenLogprobs | None = None


class Sampler:
    """Token counts int32 `[lanes, V]` on the device, and the draw."""

    def __init__(self, lanes: int, token_count: int, device: torch.device) -> None:
        self.counts = torch.zeros(lanes, token_count, dtype=torch.int32, device=device)

    def start(self, slot: int, generated: list[int]) -> None:
        """A request takes `slot`; `generated` is what it had produced before it was paused."""
        self.counts[slot].zero_()
        self.count(slot, generated)

    def count(self, slot: int, generated: list[int]) -> None:
        """Count tokens that were not drawn here."""
        if generated:
            ids = torch.tensor(generated, dtype=torch.int64, device=self.counts.device)
            self.counts[slot].index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))

    def draw(self, logits: Tensor, draws: list[Draw]) -> list[Drawn | Exception]:
        """Sample one token for each row of `logits` `[n, V]` and count it.

        A row that is not finite, or whose mask cannot be had, is an error of that row alone.
        """
        device = logits.device
        slots = torch.tensor([draw.slot for draw in draws], device=device)
        finite = torch.isfinite(logits).all(-1)
        logits = torch.where(finite[:, None], logits, 0.0)
        masked, failures = _masked(logits, draws)
        tokens = sample(
            masked,
            self.counts[slots],
            _rows([draw.sampling for draw in draws], device),
            torch.tensor([draw.position for draw in draws], device=device),
            torch.tensor([draw.purpose for draw in draws], device=device),
        )
        self.counts.index_put_((slots, tokens), torch.ones_like(tokens, dtype=torch.int32), accumulate=True)
        logprobs = _logprobs(logits, tokens, [draw.logprobs for draw in draws])
        for row, good in enumerate(finite.tolist()):
            if not good:
                failures[row] = NotFiniteError("the model gave logits that are not finite")
        drawn = zip(tokens.tolist(), logprobs, strict=True)
        return [failures.get(row) or Drawn(token, found) for row, (token, found) in enumerate(drawn)]


def _masked(logits: Tensor, draws: list[Draw]) -> tuple[Tensor, dict[int, Exception]]:
    """The logits that may be sampled from, and the rows whose mask could not be had (they keep all)."""
    failures: dict[int, Exception] = {}
    rows: list[int] = []
    words: list[np.ndarray[Any, np.dtype[np.int32]]] = []
    for row, draw in enumerate(draws):
        if draw.mask is not None:
            try:
                words.append(draw.mask())
                rows.append(row)
            except Exception as error:
                failures[row] = error
    if not rows and not any(draw.forbidden for draw in draws):
        return logits, failures
    masked = logits.clone()
    if rows:
        masked[rows] = allow(logits[rows], torch.from_numpy(np.stack(words)).to(logits.device))
    for row, draw in enumerate(draws):
        if draw.forbidden:
            masked[row, list(draw.forbidden)] = float("-inf")
    return masked, failures


def _rows(sampling: list[Sampling], device: torch.device) -> SamplingRows:
    def real(name: str) -> Tensor:
        return torch.tensor([getattr(row, name) for row in sampling], dtype=torch.float64, device=device)

    def signed(value: int) -> int:
        return (value + 2**63) % 2**64 - 2**63

    return SamplingRows(
        temperature=real("temperature"),
        top_p=real("top_p"),
        top_k=torch.tensor([row.top_k for row in sampling], dtype=torch.int64, device=device),
        min_p=real("min_p"),
        presence_penalty=real("presence_penalty"),
        frequency_penalty=real("frequency_penalty"),
        seed=torch.tensor([signed(row.seed) for row in sampling], dtype=torch.int64, device=device),
    )


def _logprobs(logits: Tensor, tokens: Tensor, wanted: list[int]) -> list[TokenLogprobs | None]:
    """Rows that asked get their own log-probability and as many of the best as they asked for."""
    asking = [row for row, count in enumerate(wanted) if count]
    found: list[TokenLogprobs | None] = [None] * len(wanted)
    if not asking:
        return found
    rows = torch.tensor(asking, device=logits.device)
    most = max(wanted[row] for row in asking)
    chosen, values, ids = (part.tolist() for part in log_probabilities(logits[rows], tokens[rows], most))
    for index, row in enumerate(asking):
        top = tuple(zip(ids[index][: wanted[row]], values[index][: wanted[row]], strict=True))
        found[row] = TokenLogprobs(token=int(tokens[row]), logprob=chosen[index], top=top)
    return found
