"""The full-attention layer (spec/model.md §4)."""

from collections.abc import Sequence

import torch

from engine.artifact.config import TextConfig
from engine.model.batch import Span
from engine.model.weights import AttentionWeights
from kernels.attention import append, causal_attention, history
from kernels.linear import linear
from kernels.norm import rms0
from kernels.rotary import rotate


def full_attention(
    x: torch.Tensor,
    weights: AttentionWeights,
    config: TextConfig,
    *,
    rotation: tuple[torch.Tensor, torch.Tensor],
    spans: Sequence[Span],
    keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """Mix normed columns x [T, H]; append to and read back one layer's key and value planes [pages, 64, Hkv, D]."""
    heads, key_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    projected = linear(x, weights.projection).view(x.shape[0], -1, dim)
    query_key, gate, value = projected.split_with_sizes([heads + key_heads, heads, key_heads], dim=1)
    query_key = rotate(rms0(query_key, weights.head_norm, config.rms_norm_eps), *rotation)
    query, key = query_key.split_with_sizes([heads, key_heads], dim=1)
    mixed = []
    for span in spans:
        columns = slice(span.begin, span.end)
        append(keys, span.new_rows, key[columns])
        append(values, span.new_rows, value[columns])
        mixed.append(
            causal_attention(
                query[columns],
                history(keys, span.all_rows, x.dtype),
                history(values, span.all_rows, x.dtype),
                gate[columns],
            )
        )
    together = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
    return linear(together.flatten(1), weights.output)
