"""Root-mean-square norms against float64 arithmetic."""

import numpy as np
import pytest
import torch

from kernels.norm import rms0, rms1_gated

EPSILON = 1e-6
GENERATOR = torch.Generator().manual_seed(3)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_zero_centred_norm(scale: float) -> None:
    x, weight = scale * normal(5, 96), normal(96)
    wide = x.double().numpy()
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPSILON) * (1 + weight.double().numpy())
    np.testing.assert_allclose(rms0(x, weight, EPSILON).numpy(), expected, rtol=2e-6, atol=1e-6)


def test_each_head_may_have_its_own_weight() -> None:
    x, weight = normal(5, 3, 32), normal(3, 32)
    together = rms0(x, weight, EPSILON)
    for head in range(3):
        assert torch.equal(together[:, head], rms0(x[:, head], weight[head], EPSILON))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_plain_gated_norm(scale: float) -> None:
    x, gate, weight = scale * normal(5, 4, 128), normal(5, 4, 128), normal(128)
    wide, z = x.double().numpy(), gate.double().numpy()
    normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPSILON) * weight.double().numpy()
    expected = normed * z / (1 + np.exp(-z))
    np.testing.assert_allclose(rms1_gated(x, gate, weight, EPSILON).numpy(), expected, rtol=2e-6, atol=1e-6)


def test_the_families_differ_by_the_normed_vector() -> None:
    x, weight = normal(5, 64), normal(64)
    unit = rms0(x, torch.zeros(64), EPSILON)
    gate = torch.full((5, 64), 50.0)  # silu(50) is 50 to float32
    torch.testing.assert_close(rms0(x, weight, EPSILON), rms1_gated(x, gate, weight, EPSILON) / 50 + unit)
    assert float((rms0(x, weight, EPSILON) - rms1_gated(x, gate, weight, EPSILON) / 50).norm()) > 10


def test_bfloat16_is_rounded_once() -> None:
    x, gate, weight = normal(7, 96, dtype=torch.bfloat16), normal(7, 96, dtype=torch.bfloat16), normal(96)
    assert torch.equal(rms0(x, weight, EPSILON), rms0(x.float(), weight, EPSILON).bfloat16())
    assert torch.equal(
        rms1_gated(x.float(), gate, weight, EPSILON), rms1_gated(x.float(), gate.float(), weight, EPSILON).bfloat16()
    )


def test_gradients() -> None:
    x, gate, weight = (normal(2, 3, 8, dtype=torch.float64).requires_grad_() for _ in range(3))
    flat = normal(8, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, weight: rms0(x, weight, EPSILON), (x, weight[0]))
    assert torch.autograd.gradcheck(lambda x, gate, weight: rms1_gated(x, gate, weight, EPSILON), (x, gate, flat))
