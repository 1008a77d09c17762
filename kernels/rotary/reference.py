"""Plain torch form of the multimodal rotary embedding (spec/model.md §4.2; Su et al., arXiv 2104.09864)."""

import torch


def inverse_frequencies(theta: float, rotary_dim: int, device: torch.device) -> torch.Tensor:
    """theta^(-2i / rotary_dim) for each pair i: float32 [rotary_dim / 2]."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=device) / rotary_dim
    return 1.0 / theta**exponents


def angles(
    positions: torch.Tensor, axes: torch.Tensor, inverse_frequency: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of every pair's angle, float32 [T, pairs] each.

    positions int64 [3, T] (time, height, width); axes int64 [pairs] names the axis of each pair. The product is
    float32 position times float32 frequency, as the published models compute it: float64 would give other
    low-order angles far from the start.
    """
    phi = positions.to(torch.float32).index_select(0, axes).t() * inverse_frequency
    return phi.cos(), phi.sin()


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate the leading dims of every head of x [T, heads, D], pair i joining dims i and i + pairs.

    cosine and sine [T, pairs] with 2 * pairs <= D; later dims pass through. float32 arithmetic, x's dtype out.
    """
    pairs = cosine.shape[-1]
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    first, second, rest = wide.split_with_sizes([pairs, pairs, x.shape[-1] - 2 * pairs], dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), dim=-1).to(x.dtype)
