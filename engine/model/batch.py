"""What one forward pass computes: token columns of several lanes, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.model.pools import Pools
from kernels.attention import PAGE_TOKENS, Rows, cache_rows


@dataclass(frozen=True)
class Segment:
    """Columns `begin` to `end` of the batch: the next tokens of one lane.

    `frontier` tokens of the lane are in its pages and state already. `pages` lists the lane's pages in token order, at
    least up to token `frontier + end - begin`. `state` is the lane's state slot; at frontier 0 it must be zeroed.
    """

    begin: int
    end: int
    frontier: int
    pages: Sequence[int] | torch.Tensor
    state: int


@dataclass(frozen=True)
class Batch:
    """Token ids int64 [T], positions int64 [3, T] (time, height, width), and segments that tile 0..T in order."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    segments: Sequence[Segment]


@dataclass(frozen=True)
class Span:
    """A checked segment, with its cache rows found once for all layers."""

    begin: int
    end: int
    state: int
    new_rows: Rows
    all_rows: Rows


def check(batch: Batch, pools: Pools) -> list[Span]:
    """Check a batch against the pools it will read and write.

    Raises:
        ValueError: shapes or dtypes are wrong, segments do not tile the columns, pages are too few, unknown or
            repeated, two segments share a state slot, or one segment's writes fall into another's pages.
    """
    tokens = batch.token_ids.shape[0]
    if batch.token_ids.dtype != torch.int64 or batch.token_ids.dim() != 1 or not tokens:
        raise ValueError(f"token_ids is {_shape(batch.token_ids)}; wanted int64 [T], T > 0")
    if batch.positions.dtype != torch.int64 or batch.positions.shape != (3, tokens):
        raise ValueError(f"positions is {_shape(batch.positions)}; wanted int64 [3, {tokens}]")
    found = []
    reached = 0
    states: set[int] = set()
    written: list[tuple[int, set[int]]] = []
    pages_of: list[list[int]] = []
    for number, segment in enumerate(batch.segments):
        if segment.begin != reached or segment.end <= segment.begin:
            raise ValueError(
                f"segment {number} is columns {segment.begin}..{segment.end}; wanted a start at {reached}, not empty"
            )
        reached = segment.end
        if segment.frontier < 0:
            raise ValueError(f"segment {number}: frontier is {segment.frontier}")
        if not 0 <= segment.state < pools.states and pools.recurrent.shape[0]:
            raise ValueError(f"segment {number}: state slot {segment.state}; the pool has {pools.states}")
        if segment.state in states and pools.recurrent.shape[0]:
            raise ValueError(f"segment {number}: state slot {segment.state} belongs to an earlier segment")
        states.add(segment.state)
        frontier = segment.frontier
        end = frontier + segment.end - segment.begin
        needed = -(-end // PAGE_TOKENS)
        listed = segment.pages.tolist() if isinstance(segment.pages, torch.Tensor) else segment.pages
        pages = list(listed[:needed])
        if len(pages) < needed:
            raise ValueError(f"segment {number}: {len(pages)} pages for {end} tokens; wanted {needed}")
        if min(pages) < 0 or max(pages) >= pools.pages:
            raise ValueError(f"segment {number}: pages {min(pages)}..{max(pages)}; the pool has {pools.pages}")
        if len(set(pages)) != needed:
            raise ValueError(f"segment {number}: a page is listed twice")
        pages_of.append(pages)
        written.append((number, set(pages[frontier // PAGE_TOKENS :])))
        device = pools.keys.device
        found.append(
            Span(
                segment.begin,
                segment.end,
                segment.state,
                new_rows=cache_rows(pages, frontier, end, device),
                all_rows=cache_rows(pages, 0, end, device),
            )
        )
    if reached != tokens:
        raise ValueError(f"segments end at column {reached} of {tokens}")
    if len(found) > 1:
        for writer, own in written:
            for reader, pages in enumerate(pages_of):
                if reader != writer and not own.isdisjoint(pages):
                    raise ValueError(f"segment {writer} would write to a page of segment {reader}")
    return found


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
