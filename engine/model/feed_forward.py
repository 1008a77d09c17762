"""The feed-forward layer, dense or sparse (spec/model.md §3 and §6)."""

import torch

from engine.artifact.config import TextConfig
from engine.model.weights import DenseWeights, ExpertWeights
from kernels.linear import linear
from kernels.moe import mixture_of_experts
from kernels.swiglu import swiglu


def feed_forward(x: torch.Tensor, weights: DenseWeights | ExpertWeights, config: TextConfig) -> torch.Tensor:
    """Transform normed columns x [T, H]."""
    if isinstance(weights, DenseWeights):
        return linear(swiglu(linear(x, weights.gate_up)), weights.down)
    assert config.experts is not None  # the loader made these weights from it
    return mixture_of_experts(
        x,
        router=weights.router,
        gate_up=weights.gate_up,
        down=weights.down,
        shared_gate_up=weights.shared_gate_up,
        shared_down=weights.shared_down,
        per_token=config.experts.per_token,
    )
