"""Root-mean-square norms: zero-centred (`rms0`), and plain with a SiLU gate (`rms1_gated`)."""

from kernels.norm.reference import rms0, rms1_gated

__all__ = ["rms0", "rms1_gated"]
