"""Partial rotary embedding with three interleaved position axes."""

from kernels.rotary.reference import angles, inverse_frequencies, rotate

__all__ = ["angles", "inverse_frequencies", "rotate"]
