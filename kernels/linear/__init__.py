"""Matrix products with model weights."""

from kernels.linear.reference import linear

__all__ = ["linear"]
