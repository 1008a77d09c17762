"""Interleaved multimodal rotary against a transcription in numpy."""

import numpy as np
import torch

from engine.artifact.config import mrope_axes
from kernels.rotary import angles, inverse_frequencies, rotate

SECTIONS, THETA, ROTARY_DIM = (11, 11, 10), 1e7, 64
CPU = torch.device("cpu")
AXES = torch.tensor(mrope_axes(SECTIONS))
FREQUENCIES = inverse_frequencies(THETA, ROTARY_DIM, CPU)


def transcription(
    x: np.ndarray[tuple[int, ...], np.dtype[np.float64]], positions: list[list[int]]
) -> list[list[list[float]]]:
    """spec/model.md §4.2, one number at a time; positions [3][T], x [T, heads, 256]."""
    out: list[list[list[float]]] = x.tolist()
    for token in range(x.shape[0]):
        for head in range(x.shape[1]):
            for i in range(32):
                phi = positions[i % 3][token] * THETA ** (-2 * i / 64)
                first, second = x[token, head, i], x[token, head, i + 32]
                out[token][head][i] = first * np.cos(phi) - second * np.sin(phi)
                out[token][head][i + 32] = second * np.cos(phi) + first * np.sin(phi)
    return out


def run(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return rotate(x, *angles(positions, AXES, FREQUENCIES))


def test_index_sets() -> None:
    sets = [[pair for pair, used in enumerate(AXES.tolist()) if used == axis] for axis in range(3)]
    assert sets == [list(range(0, 31, 3)), list(range(1, 32, 3)), list(range(2, 30, 3))]
    assert [len(pairs) for pairs in sets] == [11, 11, 10]


def test_three_different_axes() -> None:
    x = torch.randn(4, 3, 256, generator=torch.Generator().manual_seed(5))
    positions = torch.tensor([[0, 7, 7, 90], [0, 8, 9, 12], [0, 11, 7, 4000]])
    expected = transcription(x.double().numpy(), positions.tolist())
    np.testing.assert_allclose(run(x, positions).numpy(), expected, atol=2e-3)  # float32 angles reach 4000
    np.testing.assert_allclose(run(x, positions)[:3].numpy(), expected[:3], atol=2e-5)


def test_equal_axes_are_one_dimensional_rotary() -> None:
    x = torch.randn(6, 2, 256, generator=torch.Generator().manual_seed(6))
    positions = torch.arange(100, 106)
    phi = positions.float()[:, None] * FREQUENCIES
    cosine, sine = phi.cos()[:, None], phi.sin()[:, None]
    first, second = x[..., :32], x[..., 32:64]
    expected = torch.cat((first * cosine - second * sine, second * cosine + first * sine, x[..., 64:]), -1)
    torch.testing.assert_close(run(x, positions.expand(3, -1)), expected)


def test_a_common_shift_keeps_scores() -> None:
    q, k = torch.randn(2, 1, 1, 256, generator=torch.Generator().manual_seed(7))
    near = run(q, torch.full((3, 1), 40)) * run(k, torch.full((3, 1), 33))
    far = run(q, torch.full((3, 1), 47)) * run(k, torch.full((3, 1), 40))
    torch.testing.assert_close(near.sum(), far.sum(), rtol=1e-5, atol=1e-4)


def test_bfloat16_is_rounded_once_and_later_dims_pass() -> None:
    x = torch.randn(3, 2, 256, generator=torch.Generator().manual_seed(8)).bfloat16()
    positions = torch.tensor([[5, 6, 7]] * 3)
    rotated = run(x, positions)
    assert torch.equal(rotated, run(x.float(), positions).bfloat16())
    assert torch.equal(rotated[..., 64:], x[..., 64:])
    assert not torch.equal(rotated[..., :32], x[..., :32])


def test_gradients() -> None:
    x = torch.randn(2, 2, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(9)).requires_grad_()
    cosine, sine = (torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(rotate, (x, cosine, sine))
