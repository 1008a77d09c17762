"""Batches that do not fit the pools are refused before anything is written."""

import dataclasses
from typing import Any

import pytest
import torch

from engine.model import Batch, Segment
from engine.model.batch import check
from engine.model.pools import Pools
from tests.model.oracle import text_config

POOLS = Pools.zeros(
    text_config("dense"),
    attention_layers=2,
    linear_layers=2,
    pages=6,
    states=3,
    kv_dtype=torch.float32,
    state_dtype=torch.float32,
    column_dtype=torch.float32,
    device=torch.device("cpu"),
)


def batch(*segments: Segment, tokens: int | None = None) -> Batch:
    count = segments[-1].end if tokens is None else tokens
    return Batch(torch.zeros(count, dtype=torch.int64), torch.zeros(3, count, dtype=torch.int64), segments)


def test_a_good_batch() -> None:
    spans = check(batch(Segment(0, 10, 60, torch.tensor([4, 1, 5]), 2), Segment(10, 11, 0, [0], 0)), POOLS)
    assert [(span.begin, span.end, span.state) for span in spans] == [(0, 10, 2), (10, 11, 0)]
    rows = spans[0].new_rows
    assert isinstance(rows, torch.Tensor)
    assert rows.tolist() == [4 * 64 + p for p in range(60, 64)] + [64 + p for p in range(6)]
    assert spans[1].all_rows == slice(0, 1)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([Segment(1, 3, 0, [0], 0)], "segment 0 is columns 1..3; wanted a start at 0"),
        ([Segment(0, 3, 0, [0], 0), Segment(4, 5, 0, [1], 1)], "segment 1 is columns 4..5; wanted a start at 3"),
        ([Segment(0, 3, 0, [0], 0), Segment(3, 3, 0, [1], 1)], "segment 1 is columns 3..3"),
        ([Segment(0, 3, -1, [0], 0)], "frontier is -1"),
        ([Segment(0, 3, 62, [0], 0)], "1 pages for 65 tokens; wanted 2"),
        ([Segment(0, 3, 62, [0, 6], 0)], "pages 0..6; the pool has 6"),
        ([Segment(0, 3, 62, [-1, 2], 0)], "pages -1..2; the pool has 6"),
        ([Segment(0, 3, 62, [2, 2], 0)], "a page is listed twice"),
        ([Segment(0, 3, 0, [0], 3)], "state slot 3; the pool has 3"),
        ([Segment(0, 3, 0, [0], 1), Segment(3, 4, 0, [1], 1)], "state slot 1 belongs to an earlier segment"),
        ([Segment(0, 3, 0, [0], 0), Segment(3, 4, 64, [0, 1], 1)], "segment 0 would write to a page of segment 1"),
        ([Segment(0, 3, 70, [0, 1], 0), Segment(3, 4, 80, [2, 1], 1)], "segment 0 would write to a page of segment 1"),
        ([Segment(0, 3, 64, [0, 1], 0), Segment(3, 4, 0, [0], 1)], "segment 1 would write to a page of segment 0"),
    ],
)
def test_refusals(segments: list[Segment], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(batch(*segments), POOLS)


def test_shapes_and_dtypes() -> None:
    good = batch(Segment(0, 3, 0, [0], 0))
    changes: list[tuple[dict[str, Any], str]] = [
        ({"token_ids": torch.zeros(3)}, r"token_ids is float32 \[3\]"),
        ({"token_ids": torch.zeros(0, dtype=torch.int64)}, r"token_ids is int64 \[0\]"),
        ({"positions": torch.zeros(3, dtype=torch.int64)}, r"positions is int64 \[3\]; wanted int64 \[3, 3\]"),
        ({"positions": torch.zeros(3, 3)}, r"positions is float32 \[3, 3\]"),
    ]
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            check(dataclasses.replace(good, **change), POOLS)
    with pytest.raises(ValueError, match="segments end at column 3 of 4"):
        check(batch(Segment(0, 3, 0, [0], 0), tokens=4), POOLS)


def test_pools_count_their_bytes() -> None:
    assert (POOLS.pages, POOLS.states) == (6, 3)
    kv = 2 * 2 * 6 * 64 * 2 * 256 * 4
    states = 2 * 3 * (6 * 128 * 128 + 3 * (2 * 2 * 128 + 6 * 128)) * 4
    assert POOLS.bytes == kv + states
