"""Sampling in plain torch (spec/model.md §16.2). Works on any device; every row is independent of the others.

The order of candidates is total (value, then lowest id), the arithmetic on the at most 20 candidates is float64, and
the random number is a pure function of (seed, position, purpose), so a request's draws do not depend on what else runs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_CANDIDATES = 20

# What a random number is for: two draws at one position must not be the same number.
PURPOSE_PREFILL = 0
PURPOSE_DECODE = 1
PURPOSE_ACCEPT = 2
PURPOSE_CORRECTION = 3
PURPOSE_BONUS = 4

_GAMMA = 0x9E3779B97F4A7C15 - 2**64  # as signed 64-bit, which is what torch has
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class SamplingRows:
    """Sampler settings of `n` rows, each `[n]`: float64, but `top_k` and `seed` int64 (u64 seeds reinterpreted).

    `top_k` 0 or above 20 means 20; `temperature` 0 takes the best candidate.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor
    seed: Tensor


def uniform(seed: Tensor, position: Tensor, purpose: Tensor) -> Tensor:
    """Uniform numbers `k / 2**24` in [0, 1), float64 `[n]`, from int64 `[n]` each.

    With `next(x) = mix(x + 0x9E3779B97F4A7C15)`, the output step of splitmix64 (Steele, Lea and Flood, "Fast splittable
    pseudorandom number generators", 2014), modulo 2**64:
    `h = next(next(next(seed) xor position) xor purpose)`, and `k` is the upper 24 bits of `h`.
    """
    h = _next(_next(_next(seed) ^ position) ^ purpose)
    return _shift(h, 40).to(torch.float64) / 2**24


def penalise(logits: Tensor, counts: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
    """`l - presence·[c > 0] - frequency·c`, float32 `[n, V]`; `counts` `[n, V]` says how often ids were generated."""
    seen = counts.to(torch.float32)
    presence, frequency = presence.to(torch.float32)[:, None], frequency.to(torch.float32)[:, None]
    return logits.to(torch.float32) - presence * (seen > 0) - frequency * seen


def best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row, by value descending and then id ascending: values and ids `[n, count]`.

    `topk` promises no order among equal values, so it runs on unique integer keys: the float's bits made monotonic,
    above the complement of the id. The row must not hold NaN.
    """
    bits = (logits.to(torch.float32) + 0.0).view(torch.int32).to(torch.int64)  # + 0.0 makes -0.0 equal to 0.0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    keys = (ordered << 32) | (0xFFFFFFFF - ids)
    chosen = torch.topk(keys, min(count, logits.shape[-1]), dim=-1, sorted=True).values
    found = 0xFFFFFFFF - (chosen & 0xFFFFFFFF)
    return torch.gather(logits, -1, found), found


def allow(logits: Tensor, words: Tensor) -> Tensor:
    """`logits` `[n, V]` with minus infinity where the id's bit is not set.

    `words` int32 `[n, ceil(V / 32)]`: bit `i % 32` of word `i // 32` belongs to id `i`. At least one bit must be set.
    """
    bits = (words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=words.device)) & 1
    return logits.masked_fill(bits.flatten(1)[:, : logits.shape[-1]] == 0, float("-inf"))


def sample(logits: Tensor, counts: Tensor, rows: SamplingRows, position: Tensor, purpose: Tensor) -> Tensor:
    """One token id a row, int64 `[n]`.

    `logits` `[n, V]` finite, or minus infinity for ids that must not come (not all of a row); `counts` int32 `[n, V]`;
    `position` int64 `[n]` is the index of the new token in its sequence; `purpose` int64 `[n]`.
    """
    values, ids = best(penalise(logits, counts, rows.presence_penalty, rows.frequency_penalty), MAX_CANDIDATES)
    values = values.to(torch.float64)
    rank = torch.arange(values.shape[-1], device=values.device)
    limit = torch.where((rows.top_k < 1) | (rows.top_k > MAX_CANDIDATES), MAX_CANDIDATES, rows.top_k)

    greedy = rows.temperature == 0
    temperature = torch.where(greedy, 1.0, rows.temperature)[:, None]
    weights = torch.exp((values - values[:, :1]) / temperature) * (rank < limit[:, None])
    share = rows.top_p * weights.sum(-1)  # of the top-k set, before the min-p cut
    weights = torch.where(weights < rows.min_p[:, None] * weights[:, :1], 0.0, weights)
    before = torch.nn.functional.pad(torch.cumsum(weights, -1)[:, :-1], (1, 0))
    kept = (before < share[:, None]) | (rank == 0)
    cumulative = torch.cumsum(torch.where(kept, weights, 0.0), -1)

    target = uniform(rows.seed, position, purpose) * cumulative[:, -1]
    drawn = (cumulative <= target[:, None]).sum(-1)
    choice = torch.where(greedy, 0, drawn)
    return torch.gather(ids, -1, choice[:, None])[:, 0]


def log_probabilities(logits: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-softmax of raw logits `[n, V]`: that of `tokens` `[n]`, and the `count` best with their ids `[n, count]`."""
    logits = logits.to(torch.float32)
    norm = torch.logsumexp(logits, -1, keepdim=True)
    chosen = torch.gather(logits, -1, tokens[:, None])[:, 0] - norm[:, 0]
    if count == 0:
        return chosen, logits.new_empty(len(tokens), 0), tokens.new_empty(len(tokens), 0)
    values, ids = best(logits, count)
    return chosen, values - norm, ids


def _next(x: Tensor) -> Tensor:
    x = x + _GAMMA
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right: torch's is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
