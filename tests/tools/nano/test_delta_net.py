"""The packed form of gated DeltaNet against the serving form, document by document."""

import pytest
import torch
from torch.autograd import gradcheck

from kernels.delta_net import causal_convolution, delta_rule, l2_norm
from tools.nano.delta_net import (
    find_borders,
    packed_convolution,
    packed_delta_rule,
    scan_chunks,
    unit_lower_inverse,
)

LENGTHS = ([1, 62, 1, 64, 100, 28], [130, 3, 123], [256])


def numbered(lengths: list[int]) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def rows() -> torch.Tensor:
    return torch.stack([numbered(lengths) for lengths in LENGTHS])


def draw(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def spans(lengths: list[int]) -> list[slice]:
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return [slice(end - length, end) for length, end in zip(lengths, ends, strict=True)]


@pytest.mark.parametrize(("key_heads", "value_heads"), [(1, 3), (2, 4)])
def test_every_document_is_alone(key_heads: int, value_heads: int) -> None:
    documents = rows()
    batch, length = documents.shape
    query, key = (l2_norm(draw(batch, length, key_heads, 16, seed=seed)) for seed in (1, 2))
    value = draw(batch, length, value_heads, 8, seed=3)
    decay = -draw(batch, length, value_heads, seed=4).exp() * 0.2
    beta = draw(batch, length, value_heads, seed=5).sigmoid()
    ours = packed_delta_rule(query, key, value, decay=decay, beta=beta, borders=find_borders(documents, 4))
    for row, lengths in enumerate(LENGTHS):
        for span in spans(lengths):
            theirs, _ = delta_rule(
                query[row, span],
                key[row, span],
                value[row, span],
                decay=decay[row, span],
                beta=beta[row, span],
                state=torch.zeros(value_heads, 8, 16, dtype=torch.float64),
            )
            torch.testing.assert_close(ours[row, span], theirs, rtol=1e-9, atol=1e-11)


def test_gradients_do_not_cross_borders() -> None:
    documents = rows()[1:2]
    inputs = [draw(1, 256, 1, 16, seed=seed).requires_grad_() for seed in (1, 2)]
    value = draw(1, 256, 3, 8, seed=3).requires_grad_()
    decay, beta = -draw(1, 256, 3, seed=4).exp(), draw(1, 256, 3, seed=5).sigmoid()
    output = packed_delta_rule(
        l2_norm(inputs[0]), l2_norm(inputs[1]), value, decay=decay, beta=beta, borders=find_borders(documents, 4)
    )
    output[:, 133:].square().sum().backward()  # type: ignore[no-untyped-call]
    for tensor in (*inputs, value):
        assert tensor.grad is not None
        assert not tensor.grad[:, :133].any()
        assert tensor.grad[:, 133:].abs().amax() > 0


def test_convolution() -> None:
    documents = rows()
    columns, weight = draw(3, 256, 5), draw(4, 5, seed=2)
    ours = packed_convolution(columns, weight, find_borders(documents, 4))
    for row, lengths in enumerate(LENGTHS):
        for span in spans(lengths):
            theirs, _ = causal_convolution(columns[row, span], torch.zeros(3, 5, dtype=torch.float64), weight)
            torch.testing.assert_close(ours[row, span], theirs)


def test_inverse_is_stable_and_differentiable() -> None:
    # Equal keys without decay are the hardest case: powers of this matrix reach 1e18, its inverse has entries of 1.
    ones = torch.ones(64, 64).tril(-1)
    exact = torch.eye(64) - torch.diag(torch.ones(63), -1)
    torch.testing.assert_close(unit_lower_inverse(ones), exact)
    full = draw(2, 32, 32)
    exact = torch.linalg.inv(torch.eye(32, dtype=torch.float64) + full.tril(-1))
    torch.testing.assert_close(unit_lower_inverse(full), exact)
    assert gradcheck(unit_lower_inverse, 0.3 * draw(2, 32, 32).requires_grad_(), fast_mode=True)


def test_scan_gradients() -> None:
    parts = [
        draw(3, 1, 2, 4, 5, seed=1),
        draw(3, 1, 2, 4, 3, seed=2),
        draw(3, 1, 2, 4, 3, seed=3),
        draw(3, 1, 2, seed=4).sigmoid(),
    ]
    assert gradcheck(scan_chunks, [part.requires_grad_() for part in parts])
