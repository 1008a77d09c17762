"""What the rounds ask of a model. `engine.model.TextModel` is one; a test may bring another."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.model import Batch, Segment

__all__ = ["Batch", "Model", "Segment", "Span", "together"]


class Model(Protocol):
    """Tokens in, logits out. `Any` is the model's own type of pools, which the rounds only pass on."""

    def new_pools(self, pages: int, states: int, *, kv_dtype: torch.dtype, state_dtype: torch.dtype) -> Any:
        """KV pages and state slots, zeroed."""

    def reset_state(self, pools: Any, slot: int) -> None:
        """Zero one state slot."""

    def forward(self, batch: Batch, pools: Any) -> Tensor:
        """Hidden states `[T, H]` after the final norm; writes the batch into the pools."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 `[n, token_count]` of hidden rows `[n, H]`."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one lane: they stand at `frontier` and after; `slot` is the lane's state image."""

    slot: int
    frontier: int
    pages: list[int]
    token_ids: list[int]


def together(spans: list[Span], device: torch.device) -> Batch:
    """One batch of several spans, in order. Text positions are the same on all three axes (spec/model.md §4.2)."""
    segments: list[Segment] = []
    ids: list[int] = []
    positions: list[int] = []
    for span in spans:
        begin = len(ids)
        ids += span.token_ids
        positions += range(span.frontier, span.frontier + len(span.token_ids))
        segments.append(Segment(begin, len(ids), span.frontier, span.pages, span.slot))
    return Batch(
        torch.tensor(ids, dtype=torch.int64, device=device),
        torch.tensor(positions, dtype=torch.int64, device=device).expand(3, -1),
        segments,
    )
