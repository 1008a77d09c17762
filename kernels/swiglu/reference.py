"""Plain torch form of SwiGLU (Shazeer, "GLU variants improve Transformer", arXiv 2002.05202)."""

import torch
from torch.nn import functional


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [..., 2I], gate columns first: [..., I], computed in float32 and rounded once."""
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(gate_up.dtype)
