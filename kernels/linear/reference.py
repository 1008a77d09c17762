"""Plain torch form of the linear projection."""

import torch
from torch.nn import functional


def linear(columns: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Project token columns: [..., K] with a weight of [N, K] to [..., N]. No bias exists in the text stack.

    Both operands share one dtype; products accumulate in float32 or better, and the result is rounded once.
    """
    return functional.linear(columns, weight)
