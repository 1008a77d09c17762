"""The small ops around the matrices: embedding, linear, SwiGLU."""

import numpy as np
import pytest
import torch

from kernels.embedding import embedding
from kernels.linear import linear
from kernels.swiglu import swiglu


def test_embedding_rows_are_unscaled() -> None:
    table = torch.randn(10, 4, generator=torch.Generator().manual_seed(1)).bfloat16()
    ids = torch.tensor([9, 0, 9])
    assert torch.equal(embedding(ids, table), table[[9, 0, 9]])
    with pytest.raises(IndexError):
        embedding(torch.tensor([10]), table)


def test_linear_rows_are_outputs() -> None:
    x, weight = torch.randn(3, 5, generator=torch.Generator().manual_seed(2)), torch.eye(5)[[2, 0]]
    assert torch.equal(linear(x, weight), x[:, [2, 0]])


def test_swiglu_gates_with_the_first_half() -> None:
    pair = torch.randn(3, 8, generator=torch.Generator().manual_seed(3))
    gate, up = np.split(pair.double().numpy(), 2, axis=1)
    np.testing.assert_allclose(swiglu(pair).numpy(), gate / (1 + np.exp(-gate)) * up, atol=1e-6)
    half = pair.bfloat16()
    assert torch.equal(swiglu(half), swiglu(half.float()).bfloat16())


def test_gradients() -> None:
    pair = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).requires_grad_()
    weight = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).requires_grad_()
    assert torch.autograd.gradcheck(swiglu, (pair,))
    assert torch.autograd.gradcheck(linear, (pair, weight))
