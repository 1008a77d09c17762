"""Paged causal attention against float64 arithmetic, and its cache rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention import PAGE_TOKENS, append, cache_rows, causal_attention, history

CPU = torch.device("cpu")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("width", "tokens"), [(1, 1), (1, 70), (4, 4), (5, 130), (64, 64), (270, 300)])
@pytest.mark.parametrize(("heads", "key_heads"), [(6, 2), (8, 1), (2, 2)])
def test_against_a_loop(width: int, tokens: int, heads: int, key_heads: int) -> None:
    dim = 32
    query, gate = normal(width, heads, dim, seed=1), normal(width, heads, dim, seed=2)
    keys, values = normal(tokens, key_heads, dim, seed=3), normal(tokens, key_heads, dim, seed=4)
    expected = np.empty((width, heads, dim))
    for column in range(width):
        seen = tokens - width + column + 1
        for head in range(heads):
            key, value = keys[:seen, head // (heads // key_heads)], values[:seen, head // (heads // key_heads)]
            scores = (key.numpy() @ query[column, head].numpy()) / np.sqrt(dim)
            weights = np.exp(scores - scores.max())
            mixed = weights @ value.numpy() / weights.sum()
            expected[column, head] = mixed / (1 + np.exp(-gate[column, head].numpy()))
    single = causal_attention(query.float(), keys.float(), values.float(), gate.float())
    np.testing.assert_allclose(single.numpy(), expected, atol=2e-6)
    np.testing.assert_allclose(causal_attention(query, keys, values, gate).numpy(), expected, atol=1e-12)


@given(st.data())
def test_rows_follow_the_pages(data: st.DataObject) -> None:
    pages = data.draw(st.permutations(range(6)))
    if data.draw(st.booleans()):
        pages = sorted(pages)
    end = data.draw(st.integers(1, len(pages) * PAGE_TOKENS))
    begin = data.draw(st.integers(0, end - 1))
    plane = torch.arange(6 * PAGE_TOKENS)
    found = plane[cache_rows(pages, begin, end, CPU)]
    assert found.tolist() == [pages[p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS for p in range(begin, end)]


def test_consecutive_pages_are_read_in_place() -> None:
    rows = cache_rows([9, 3, 4, 5], 70, 200, CPU)
    assert rows == slice(3 * PAGE_TOKENS + 6, 3 * PAGE_TOKENS + 6 + 130)
    plane = torch.zeros(10, PAGE_TOKENS, 2, 4)
    assert history(plane, rows, torch.float32).data_ptr() == plane[3, 6].data_ptr()


@pytest.mark.parametrize("pages", [[2, 3], [3, 1]])
def test_append_writes_its_rows_alone_in_the_plane_dtype(pages: list[int]) -> None:
    plane = torch.full((5, PAGE_TOKENS, 2, 4), 7.0, dtype=torch.bfloat16)
    columns = normal(10, 2, 4, seed=6).float()
    append(plane, cache_rows(pages, 60, 70, CPU), columns)
    assert torch.equal(history(plane, cache_rows(pages, 60, 70, CPU), torch.float32), columns.bfloat16().float())
    assert torch.equal(plane[pages[0], 60:], columns[:4].bfloat16())
    assert torch.equal(plane[pages[1], :6], columns[4:].bfloat16())
    assert int((plane == 7).sum()) == plane.numel() - columns.numel()


@pytest.mark.parametrize("width", [1, 3])
def test_gradients(width: int) -> None:
    arguments = (normal(width, 4, 8), normal(5, 2, 8, seed=1), normal(5, 2, 8, seed=2), normal(width, 4, 8, seed=3))
    assert torch.autograd.gradcheck(causal_attention, tuple(a.requires_grad_() for a in arguments))
