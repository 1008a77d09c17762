"""Drives a model lane by lane, as the engine does."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from engine.model import Batch, Pools, Segment, TextModel


@dataclass
class Lane:
    """One sequence: its tokens are in `pages` and slot `state` up to `frontier`."""

    pages: Sequence[int]
    state: int
    frontier: int = 0
    hidden: list[torch.Tensor] = field(default_factory=list)


def positions(begin: int, end: int) -> torch.Tensor:
    """Text positions: the same on three axes."""
    return torch.arange(begin, end).expand(3, -1)


def step(model: TextModel, pools: Pools, parts: Sequence[tuple[Lane, torch.Tensor]]) -> list[torch.Tensor]:
    """One forward pass over the next tokens of several lanes. Returns each lane's hidden columns."""
    segments, begin = [], 0
    for lane, token_ids in parts:
        end = begin + len(token_ids)
        segments.append(Segment(begin, end, lane.frontier, lane.pages, lane.state))
        begin = end
    batch = Batch(
        torch.cat([token_ids for _, token_ids in parts]),
        torch.cat([positions(lane.frontier, lane.frontier + len(token_ids)) for lane, token_ids in parts], dim=1),
        segments,
    )
    with torch.inference_mode():
        hidden = model.forward(batch, pools)
    for lane, token_ids in parts:
        lane.frontier += len(token_ids)
    return [hidden[segment.begin : segment.end] for segment in segments]


def new_pools(model: TextModel, *, pages: int = 8, states: int = 2, kv_dtype: torch.dtype | None = None) -> Pools:
    """Pools filled with a value no model makes, so that a read of what was never written shows; states are zeroed."""
    pools = model.new_pools(pages, states, kv_dtype=kv_dtype or model.dtype, state_dtype=torch.float32)
    pools.keys.fill_(1e4)
    pools.values.fill_(1e4)
    return pools


def prefill(model: TextModel, token_ids: torch.Tensor, sizes: Iterable[int] | None = None) -> torch.Tensor:
    """Logits [T, token count] of one lane on scattered pages, in chunks of the given sizes (the last one repeats)."""
    lane = Lane(pages=[5, 2, 7, 3, 4, 1], state=1)
    pools = new_pools(model)
    chunks = []
    size = len(token_ids)
    following = iter(sizes or ())
    while lane.frontier < len(token_ids):
        size = next(following, size)
        chunks += step(model, pools, [(lane, token_ids[lane.frontier : lane.frontier + size])])
    with torch.inference_mode():
        return model.logits(torch.cat(chunks))
