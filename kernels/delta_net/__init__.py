"""Gated DeltaNet: short convolution, gates, and the delta rule in recurrent and chunked form."""

from kernels.delta_net.reference import (
    CHUNK_TOKENS,
    causal_convolution,
    chunked_delta_rule,
    delta_rule,
    gates,
    l2_norm,
    recurrent_delta_rule,
)

__all__ = [
    "CHUNK_TOKENS",
    "causal_convolution",
    "chunked_delta_rule",
    "delta_rule",
    "gates",
    "l2_norm",
    "recurrent_delta_rule",
]
