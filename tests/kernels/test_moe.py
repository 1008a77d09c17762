"""Routing and experts against float64 arithmetic."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels.moe import mixture_of_experts, route

Weights = dict[str, torch.Tensor]


def weights(experts: int = 8, hidden: int = 12, width: int = 6, shared: int = 4) -> Weights:
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "router": (experts + 1, hidden),
        "gate_up": (experts, 2 * width, hidden),
        "down": (experts, hidden, width),
        "shared_gate_up": (2 * shared, hidden),
        "shared_down": (hidden, shared),
    }
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def columns(tokens: int, hidden: int = 12) -> torch.Tensor:
    return torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(tokens), dtype=torch.float64)


def transcription(v: npt.NDArray[Any], w: dict[str, npt.NDArray[Any]], per_token: int) -> npt.NDArray[Any]:
    """spec/model.md §6 for one token."""

    def expert(gate_up: npt.NDArray[Any], down: npt.NDArray[Any]) -> npt.NDArray[Any]:
        gate, up = np.split(gate_up @ v, 2)
        return np.asarray(down @ (gate / (1 + np.exp(-gate)) * up))

    logits = w["router"] @ v
    p = np.exp(logits[:-1]) / np.exp(logits[:-1]).sum()
    chosen = sorted(range(len(p)), key=lambda e: (-p[e], e))[:per_token]
    total = sum(p[e] for e in chosen)
    routed = sum(p[e] / total * expert(w["gate_up"][e], w["down"][e]) for e in chosen)
    return np.asarray(routed + expert(w["shared_gate_up"], w["shared_down"]) / (1 + np.exp(-logits[-1])))


@pytest.mark.parametrize("tokens", [1, 2, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_a_transcription(tokens: int, dtype: torch.dtype) -> None:
    x, w = columns(tokens), weights()
    exact = {name: tensor.numpy() for name, tensor in w.items()}
    expected = np.stack([transcription(v, exact, 3) for v in x.numpy()])
    ours = mixture_of_experts(x.to(dtype), **{name: tensor.to(dtype) for name, tensor in w.items()}, per_token=3)
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-11 if dtype == torch.float64 else 1e-4)


def test_of_equal_probabilities_the_lower_id_comes_first() -> None:
    logits = torch.tensor([[0.0, 2.0, 0.0, 2.0, 0.0, 1.0], [3.0] * 6, [0.0, 0.0, 0.0, 0.0, 0.0, 9.0]])
    experts, weight = route(logits, 4)
    assert experts.tolist() == [[1, 3, 5, 0], [0, 1, 2, 3], [5, 0, 1, 2]]
    assert weight.dtype == torch.float32
    torch.testing.assert_close(weight.sum(-1), torch.ones(3))
    assert weight[1].tolist() == [0.25] * 4


def test_ties_among_many_experts() -> None:
    experts, _ = route(torch.zeros(5, 256), 8)
    assert experts.tolist() == [list(range(8))] * 5


def test_a_token_does_not_depend_on_its_neighbours() -> None:
    x = columns(20)
    together = mixture_of_experts(x, **weights(), per_token=3)
    alone = torch.cat([mixture_of_experts(row[None], **weights(), per_token=3) for row in x])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 3])
def test_gradients(tokens: int) -> None:
    w = weights(experts=4, hidden=3, width=2, shared=2)
    names = list(w)

    def by_position(x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        return mixture_of_experts(x, **dict(zip(names, tensors, strict=True)), per_token=2)

    inputs = (columns(tokens, 3), *w.values())
    assert torch.autograd.gradcheck(by_position, tuple(tensor.requires_grad_() for tensor in inputs))
