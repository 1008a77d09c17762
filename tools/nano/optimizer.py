"""Muon for matrices, AdamW for the rest, and a schedule that follows the clock."""

from collections.abc import Iterable

import torch
from torch import nn

WARM_UP = 0.02
DECAY_FROM = 0.6
MATRIX_RATE = 0.01
VECTOR_RATE = 0.003


def factor(progress: float) -> float:
    """Learning-rate factor at `progress` of the run, 0 to 1: warm-up, a plateau, and a straight line to nothing.

    Hu et al., "MiniCPM" (arXiv 2404.06395), §4: what counts is that a run ends annealed, whenever it ends.
    """
    if progress < WARM_UP:
        return progress / WARM_UP
    return min(1.0, max(1.0 - progress, 0.0) / (1.0 - DECAY_FROM))


def is_matrix(name: str, parameter: torch.Tensor) -> bool:
    """Whether Muon takes a parameter: projections inside blocks, but no embedding, head, router or stack of experts."""
    small = min(parameter.shape) < 16 if parameter.dim() == 2 else True
    return not small and not name.startswith(("model.embed_tokens", "lm_head")) and not name.endswith("mlp.gate.weight")


def make_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024; update size matched to AdamW's as in Liu et al., arXiv 2502.16982) and AdamW."""
    matrices: list[nn.Parameter] = []
    tables: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        group = matrices if is_matrix(name, parameter) else tables if parameter.dim() > 1 else vectors
        group.append(parameter)
    fused = matrices[0].is_cuda
    return [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(
            [
                {"params": tables, "weight_decay": 0.01},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=VECTOR_RATE,
            betas=(0.9, 0.95),
            fused=fused,
        ),
    ]


def set_rates(optimizers: Iterable[torch.optim.Optimizer], progress: float, rate: float = 1.0) -> None:
    """Set every group's rate for `progress`, times `rate`."""
    scale = rate * factor(progress)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("base_lr", group["lr"]) * scale
