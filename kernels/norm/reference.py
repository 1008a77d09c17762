"""Plain torch form of the norms (spec/model.md §2; Zhang and Sennrich, arXiv 1910.07467).

Mixing the two families up gives a model that looks plausible and is wrong, so the family is in the name.
"""

import torch
from torch.nn import functional


def rms0(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Zero-centred norm: x / sqrt(mean(x²) + epsilon) * (1 + weight).

    x [..., N]; weight broadcasts against it: [N], or [heads, N] where each head has its own. float32 arithmetic
    (float64 for float64), rounded once to x's dtype.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (functional.rms_norm(wide, (wide.shape[-1],), eps=epsilon) * (1 + weight)).to(x.dtype)


def rms1_gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Plain norm, then the gate: x / sqrt(mean(x²) + epsilon) * weight * silu(gate), in gate's dtype.

    x and gate [..., N], weight [N]. One rounding, at the end (spec/model.md §5.1 leaves the middle one free).
    """
    wide = torch.promote_types(gate.dtype, torch.float32)
    normed = functional.rms_norm(x.to(wide), (x.shape[-1],), eps=epsilon) * weight
    return (normed * functional.silu(gate.to(wide))).to(gate.dtype)
