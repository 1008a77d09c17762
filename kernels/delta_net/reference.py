"""Plain torch form of gated DeltaNet (spec/model.md §5; Yang et al., "Gated Delta Networks", arXiv 2412.06464).

The state of a value head is a matrix [Dv, Dk] that maps keys to values. Shapes here: T tokens, Hk query and key heads,
Hv value heads; value head n reads key head n // (Hv / Hk). Arithmetic is float32, or float64 for float64 inputs.
Nothing is written in place: the state goes in and the new state comes out.
"""

import torch
from torch.nn import functional

CHUNK_TOKENS = 64
# Below this many tokens the token recurrence costs less than building the triangular system of a chunk.
RECURRENT_TOKENS = 16


def causal_convolution(
    columns: torch.Tensor, past: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Depthwise causal convolution, then SiLU.

    columns [T, C]; past [K - 1, C] the projected columns before them, oldest first, zero at the start; weight [K, C],
    the tap on the current column last. Returns the activated columns [T, C] in the dtype of `columns`, and the next
    past [K - 1, C]. Every output is summed in one order whatever T is, so that a split of the tokens changes nothing
    but the last bit of SiLU, which torch may compute differently at the end of a vector.
    """
    count, taps = columns.shape[0], weight.shape[0]
    window = torch.cat((past, columns))
    wide = window.to(torch.promote_types(window.dtype, torch.float32))
    total = wide[:count] * weight[0]
    for tap in range(1, taps):
        total = total + wide[tap : tap + count] * weight[tap]
    return functional.silu(total).to(columns.dtype), window[count:]


def gates(
    a: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-decay -exp(a_log) * softplus(a + dt_bias), never positive, and write strength sigmoid(b).

    a and b [T, Hv]; a_log and dt_bias float32 [Hv]. Both results [T, Hv], float32 or better.
    """
    wide = torch.promote_types(a.dtype, torch.float32)
    return -a_log.exp() * functional.softplus(a.to(wide) + dt_bias), b.to(wide).sigmoid()


def l2_norm(x: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    """x / sqrt(sum(x²) + epsilon) over the last dim; the epsilon joins a sum, not a mean. float32 or better."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide * (wide.square().sum(-1, keepdim=True) + epsilon).rsqrt()


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule in the form that suits the number of tokens; arguments as `recurrent_delta_rule`."""
    form = recurrent_delta_rule if query.shape[0] < RECURRENT_TOKENS else chunked_delta_rule
    return form(query, key, value, decay=decay, beta=beta, state=state)


def recurrent_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token by token: decay the state, read it with the key, write the correction, read it with the query.

    query and key [T, Hk, Dk], L2-normalised, query not yet scaled; value [T, Hv, Dv]; decay (log, <= 0) and beta
    [T, Hv]; state [Hv, Dv, Dk]. Returns output [T, Hv, Dv] and the new state, in the state's dtype.
    """
    tokens, key_heads, key_dim = key.shape
    value_heads, value_dim = value.shape[1:]
    ratio = value_heads // key_heads
    query = query * key_dim**-0.5
    value = value.to(state.dtype)
    factor = decay.exp()
    outputs = []
    for token in range(tokens):
        # The value heads of one key head are stacked: their matrices share a read vector.
        state = state * factor[token].view(value_heads, 1, 1)
        stacked = state.view(key_heads, ratio * value_dim, key_dim)
        read = torch.bmm(stacked, key[token].unsqueeze(-1)).view(value_heads, value_dim)
        write = (value[token] - read) * beta[token].unsqueeze(-1)
        stacked = torch.baddbmm(stacked, write.view(key_heads, ratio * value_dim, 1), key[token].unsqueeze(1))
        outputs.append(torch.bmm(stacked, query[token].unsqueeze(-1)).view(value_heads, value_dim))
        state = stacked.view(value_heads, value_dim, key_dim)
    return torch.stack(outputs), state


def chunked_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same result by chunks of 64 tokens (the WY form of spec/model.md §5.3); arguments as the recurrent form.

    Everything inside the chunks is computed for all of them at once; only the state goes from chunk to chunk. The
    tail is padded with beta = 0 and decay = 0, which leaves the state alone. Only differences of the summed log-decay
    that are <= 0 are exponentiated.
    """
    tokens, key_heads, key_dim = key.shape
    value_heads = value.shape[1]
    chunks = -(-tokens // CHUNK_TOKENS)
    padding = chunks * CHUNK_TOKENS - tokens
    ratio = value_heads // key_heads

    def split(x: torch.Tensor, repeats: int) -> torch.Tensor:
        """[T, heads, N] to [chunks, value heads, 64, N], padded with zeros."""
        x = functional.pad(x.to(state.dtype), (0, 0, 0, 0, 0, padding))
        x = x.view(chunks, CHUNK_TOKENS, *x.shape[1:]).transpose(1, 2)
        return x.repeat_interleave(repeats, dim=1) if repeats > 1 else x

    query = split(query * key_dim**-0.5, ratio)
    key = split(key, ratio)
    value = split(value, 1)
    beta = split(beta.unsqueeze(-1), 1)
    total = split(decay.unsqueeze(-1), 1).squeeze(-1).cumsum(-1)  # G: [chunks, Hv, 64]

    grown = total.exp().unsqueeze(-1)
    upper = torch.ones(CHUNK_TOKENS, CHUNK_TOKENS, dtype=torch.bool, device=key.device).triu(1)
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(upper, -torch.inf).exp()  # D
    weighted = key * beta
    system = (weighted @ key.mT) * between
    # The solver reads only what lies under the diagonal and takes the diagonal as 1: it solves (I + A) X = Y.
    solved = torch.linalg.solve_triangular(
        system, torch.cat((value * beta, weighted * grown), dim=-1), upper=False, unitriangular=True
    )
    fresh, carried = solved.split_with_sizes([value.shape[-1], key_dim], dim=-1)  # U and W
    inside = (query @ key.mT) * between
    query = query * grown
    key = key * (total[..., -1:] - total).exp().unsqueeze(-1)
    kept = grown[..., -1:, :]

    outputs = []
    for chunk in range(chunks):
        corrected = fresh[chunk] - carried[chunk] @ state.mT
        outputs.append(query[chunk] @ state.mT + inside[chunk] @ corrected)
        state = state * kept[chunk] + corrected.mT @ key[chunk]
    return torch.stack(outputs).transpose(1, 2).flatten(0, 1)[:tokens], state
