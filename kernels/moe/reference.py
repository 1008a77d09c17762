"""Plain torch form of the mixture of experts (spec/model.md §6)."""

import torch

from kernels.linear import linear
from kernels.swiglu import swiglu


def route(logits: torch.Tensor, per_token: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The most probable experts of each token; of equal probabilities the lower expert id comes first.

    logits [T, E]. Returns ids int64 [T, per_token] and their probabilities divided by their sum, float32 or better.
    """
    probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    # `topk` promises no order among equals; a stable sort does.
    ordered, experts = probabilities.sort(dim=-1, descending=True, stable=True)
    chosen = ordered[:, :per_token]
    return experts[:, :per_token], chosen / chosen.sum(-1, keepdim=True)


def mixture_of_experts(
    x: torch.Tensor,
    *,
    router: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared_gate_up: torch.Tensor,
    shared_down: torch.Tensor,
    per_token: int,
) -> torch.Tensor:
    """Routed experts, weighted, plus the shared expert times its sigmoid score.

    x [T, H]; router [E + 1, H], the row of the shared expert's score last; gate_up [E, 2I, H], gate rows first;
    down [E, H, I]; shared_gate_up [2J, H]; shared_down [H, J]. Returns [T, H] in x's dtype; the weighted sum is
    float32 or better.
    """
    tokens = x.shape[0]
    wide = torch.promote_types(x.dtype, torch.float32)
    logits = linear(x, router)
    experts, weights = route(logits[:, :-1], per_token)
    if tokens == 1:
        chosen = experts[0]
        product = swiglu(torch.matmul(gate_up[chosen], x[0]))
        routed = torch.bmm(down[chosen], product.unsqueeze(-1)).view(1, per_token, -1)
    else:
        routed = _by_expert(x, gate_up, down, experts.flatten()).view(tokens, per_token, -1)
    mixed = (routed.to(wide) * weights.unsqueeze(-1)).sum(1)
    shared = linear(swiglu(linear(x, shared_gate_up)), shared_down)
    return (mixed + logits[:, -1:].to(wide).sigmoid() * shared.to(wide)).to(x.dtype)


def _by_expert(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Outputs [T * k, H] of flat expert ids [T * k]: tokens are grouped so that each expert's weights are read once."""
    order = experts.argsort(stable=True)
    grouped = x[order // (experts.shape[0] // x.shape[0])]
    outputs, begin = [], 0
    for expert, count in enumerate(torch.bincount(experts).tolist()):
        if count:
            part = grouped[begin : begin + count]
            outputs.append(linear(swiglu(linear(part, gate_up[expert])), down[expert]))
            begin += count
    return torch.cat(outputs)[order.argsort()]
