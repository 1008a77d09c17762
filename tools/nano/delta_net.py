"""Gated DeltaNet for training: many packed rows at once, in plain torch (spec/model.md §5.3).

A row holds documents one behind the other. A document neither sees nor decays the state of the one before it: products
across a border are masked, exactly. Everything inside chunks is computed for all chunks of the batch together; only the
64-token steps of the state are sequential, and those have a backward pass of their own, so that a step costs three
small products each way instead of what autograd would record.

`kernels/delta_net/reference.py` is the serving form of the same rule; a test holds the two together.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from kernels.delta_net import CHUNK_TOKENS

SMALL_BLOCK = 16


@dataclass(frozen=True)
class Borders:
    """Which tokens may exchange what; made once a batch. Chunks C, rows B.

    Attributes:
        taps: bool [B, L, 1] for each distance 0 .. taps - 1: the token that far back is of the same document.
        inside: bool [C, B, 1, 64, 64]: j <= i, same document.
        entry: float [C, B, 1, 64]: 1 where the token continues the document that the state before its chunk is of.
        leaving: float [C, B, 1, 64]: 1 where the token is of the document that ends the chunk.
        kept: float [C, B, 1]: 1 where one document reaches from before the chunk to its end.
    """

    taps: tuple[torch.Tensor, ...]
    inside: torch.Tensor
    entry: torch.Tensor
    leaving: torch.Tensor
    kept: torch.Tensor


def find_borders(documents: torch.Tensor, taps: int) -> Borders:
    """From document numbers [B, L], equal for the tokens of a document and for no neighbour's; L a multiple of 64."""
    rows, length = documents.shape
    chunks = documents.view(rows, length // CHUNK_TOKENS, CHUNK_TOKENS).transpose(0, 1).unsqueeze(2)
    last = chunks[..., -1:]
    before = torch.cat((torch.full_like(last[:1], -1), last[:-1]))
    # A tap that reaches before the row reads zeros: no document has a negative number.
    reach = functional.pad(documents, (taps - 1, 0), value=-1)
    return Borders(
        taps=tuple(
            (reach[:, taps - 1 - back : taps - 1 - back + length] == documents).unsqueeze(-1) for back in range(taps)
        ),
        inside=(chunks.unsqueeze(-1) == chunks.unsqueeze(-2)).tril(),
        entry=(chunks == before).float(),
        leaving=(chunks == last).float(),
        kept=(last == before).squeeze(-1).float(),
    )


def packed_convolution(columns: torch.Tensor, weight: torch.Tensor, borders: Borders) -> torch.Tensor:
    """Depthwise causal convolution inside documents, then SiLU.

    columns [B, L, channels]; weight [K, channels], the tap on the current column last. Returns the columns' dtype;
    sums are float32.
    """
    taps = weight.shape[0]
    wide = columns.to(torch.promote_types(columns.dtype, torch.float32))
    total = wide * weight[-1]
    reach = functional.pad(wide, (0, 0, taps - 1, 0))
    for back in range(1, taps):
        shifted = reach[:, taps - 1 - back : taps - 1 - back + columns.shape[1]]
        total = torch.addcmul(total, shifted.masked_fill(~borders.taps[back], 0.0), weight[-1 - back])
    return functional.silu(total).to(columns.dtype)


def packed_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    decay: torch.Tensor,
    beta: torch.Tensor,
    borders: Borders,
) -> torch.Tensor:
    """The gated delta rule over every document of the batch, each from a zero state.

    query and key [B, L, Hk, Dk], L2-normalised, query not yet scaled; value [B, L, Hv, Dv]; decay (log, <= 0) and beta
    [B, L, Hv]. Returns [B, L, Hv, Dv] in float32 (float64 for float64 values).
    """
    rows, length, key_heads, key_dim = key.shape
    value_heads, value_dim = value.shape[2:]
    ratio = value_heads // key_heads
    chunks = length // CHUNK_TOKENS
    wide = torch.promote_types(value.dtype, torch.float32)

    def split(x: torch.Tensor) -> torch.Tensor:
        """[B, L, heads, N] to [C, B, heads, 64, N]."""
        return x.to(wide).view(rows, chunks, CHUNK_TOKENS, *x.shape[2:]).permute(1, 0, 3, 2, 4)

    with torch.autocast(value.device.type, enabled=False):
        query, key = split(query * key_dim**-0.5), split(key)
        # Products of queries and keys are the same for all value heads of a key head.
        similar, asked = (part.repeat_interleave(ratio, dim=2) for part in (key @ key.mT, query @ key.mT))
        query, key = query.repeat_interleave(ratio, dim=2), key.repeat_interleave(ratio, dim=2)
        value, beta = split(value), split(beta.unsqueeze(-1))
        total = split(decay.unsqueeze(-1)).squeeze(-1).cumsum(-1)  # [C, B, Hv, 64]
        end = total[..., -1:]

        # Only differences that are <= 0 are exponentiated, and none across a border.
        between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~borders.inside, -torch.inf).exp()
        entry = (total.exp() * borders.entry.to(wide)).unsqueeze(-1)
        inverse = unit_lower_inverse(similar * between * beta)
        fresh, carried = inverse @ (value * beta), inverse @ (key * (beta * entry))
        leaving = key * ((end - total).exp() * borders.leaving.to(wide)).unsqueeze(-1)
        kept = end.squeeze(-1).exp() * borders.kept.to(wide)

        corrected, states = scan_chunks(fresh, carried, leaving, kept)
        output = (query * entry) @ states + (asked * between) @ corrected
    joined: torch.Tensor = output.permute(1, 0, 3, 2, 4).reshape(rows, length, value_heads, value_dim)
    return joined


def unit_lower_inverse(lower: torch.Tensor) -> torch.Tensor:
    """(I + A)^-1 for the strictly lower triangular part A of [..., n, n], n a power of two; the rest is not read.

    Blocks double: with the inverses X and Z of two diagonal blocks and Y between them, the block below the diagonal is
    -Z Y X. Unlike summing powers of A this is as stable as substitution, and it is only products.
    """
    result: torch.Tensor = _UnitLowerInverse.apply(lower)  # type: ignore[no-untyped-call]
    return result


class _UnitLowerInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lower: torch.Tensor) -> torch.Tensor:
        inverse = _invert(lower)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (inverse,) = ctx.saved_tensors
        gradient: torch.Tensor = -(inverse.mT @ gradients[0] @ inverse.mT).tril(-1)
        return gradient


def _invert(lower: torch.Tensor) -> torch.Tensor:
    size = lower.shape[-1]
    half = size // 2
    if size <= SMALL_BLOCK:
        return _invert_small(lower)
    corners = torch.stack((lower[..., :half, :half], lower[..., half:, half:]))
    first, second = _invert(corners)
    inverse = torch.zeros_like(lower)
    inverse[..., :half, :half] = first
    inverse[..., half:, half:] = second
    inverse[..., half:, :half] = -(second @ lower[..., half:, :half] @ first)
    return inverse


def _invert_small(lower: torch.Tensor) -> torch.Tensor:
    """The same for all blocks of a small matrix in place of each other: fewer and larger products."""
    size = lower.shape[-1]
    index = torch.arange(size, device=lower.device)
    row, column = index.unsqueeze(1), index.unsqueeze(0)
    inverse = torch.eye(size, dtype=lower.dtype, device=lower.device)
    block = 1
    while block < size:
        below = (row // (2 * block) == column // (2 * block)) & (row // block > column // block)
        step = lower.masked_fill(~below, 0.0)
        inverse = inverse - (step if block == 1 else inverse @ step @ inverse)
        block *= 2
    return inverse


@torch.compiler.disable  # type: ignore[untyped-decorator]
def scan_chunks(
    fresh: torch.Tensor, carried: torch.Tensor, leaving: torch.Tensor, kept: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state from chunk to chunk: N = U - W S, then S = kept · S + K^T N, from S = 0.

    fresh U [C, B, H, 64, Dv]; carried W and leaving K [C, B, H, 64, Dk]; kept [C, B, H]. Returns N [C, B, H, 64, Dv]
    and the state before each chunk [C, B, H, Dk, Dv].
    """
    lead = fresh.shape[:3]
    flat = [part.flatten(1, 2).contiguous() for part in (fresh, carried, leaving, kept)]
    corrected, states = _ScanChunks.apply(*flat)  # type: ignore[no-untyped-call]
    return corrected.view(*lead, *corrected.shape[2:]), states.view(*lead, *states.shape[2:])


class _ScanChunks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, fresh: torch.Tensor, carried: torch.Tensor, leaving: torch.Tensor, kept: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chunks, batch, _, value_dim = fresh.shape
        key_dim = carried.shape[-1]
        corrected = torch.empty_like(fresh)
        states = fresh.new_empty(chunks, batch, key_dim, value_dim)
        state = fresh.new_zeros(batch, key_dim, value_dim)
        for chunk in range(chunks):
            states[chunk] = state
            torch.baddbmm(fresh[chunk], carried[chunk], state, alpha=-1, out=corrected[chunk])
            state = torch.baddbmm(state * kept[chunk].view(-1, 1, 1), leaving[chunk].mT, corrected[chunk])
        ctx.save_for_backward(carried, leaving, kept, corrected, states)
        return corrected, states

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        carried, leaving, kept, corrected, states = ctx.saved_tensors
        to_corrected, to_states = gradients
        fresh_gradient = torch.empty_like(corrected)
        after = torch.empty_like(states)  # gradients of the state behind each chunk
        state_gradient = torch.zeros_like(states[0])
        for chunk in range(len(corrected) - 1, -1, -1):
            after[chunk] = state_gradient
            torch.baddbmm(to_corrected[chunk], leaving[chunk], state_gradient, out=fresh_gradient[chunk])
            total = torch.addcmul(to_states[chunk], state_gradient, kept[chunk].view(-1, 1, 1))
            state_gradient = torch.baddbmm(total, carried[chunk].mT, fresh_gradient[chunk], alpha=-1)
        return (
            fresh_gradient,
            -(fresh_gradient @ states.mT),
            corrected @ after.mT,
            (after * states).sum((-2, -1)),
        )
