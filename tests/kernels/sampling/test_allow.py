"""Masks of words against a plain loop."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling import SamplingRows, allow, sample


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 100), st.integers(1, 4), st.integers(0, 1000))
def test_a_bit_an_id(count: int, rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, count, generator=generator)
    words = torch.randint(-(2**31), 2**31, (rows, (count + 31) // 32), generator=generator).to(torch.int32)
    masked = allow(logits, words)
    for row in range(rows):
        for token in range(count):
            allowed = int(words[row, token // 32]) >> (token % 32) & 1
            assert masked[row, token] == (logits[row, token] if allowed else float("-inf"))


def test_only_what_is_allowed_is_sampled() -> None:
    rows = 200
    words = torch.zeros(rows, 2, dtype=torch.int32)
    words[:, 0], words[:, 1] = 1 << 3, -(2**31)  # ids 3 and 63, the latter the sign bit
    logits = torch.zeros(rows, 64)
    logits[:, 3] = -30.0

    def same(value: float) -> torch.Tensor:
        return torch.full((rows,), value, dtype=torch.float64)

    settings = SamplingRows(
        temperature=same(2.0), top_p=same(1.0), top_k=torch.zeros(rows, dtype=torch.int64), min_p=same(0.0),
        presence_penalty=same(2.0), frequency_penalty=same(2.0), seed=torch.arange(rows),
    )  # fmt: skip
    counts = torch.zeros(rows, 64, dtype=torch.int32)
    counts[:, 63] = 15  # penalised as much as the other
    position = torch.zeros(rows, dtype=torch.int64)
    drawn = sample(allow(logits, words), counts, settings, position, position)
    assert set(drawn.tolist()) == {3, 63}
