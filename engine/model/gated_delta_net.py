"""The gated-DeltaNet layer (spec/model.md §5)."""

from collections.abc import Sequence

import torch

from engine.artifact.config import TextConfig
from engine.model.batch import Span
from engine.model.weights import GatedDeltaNetWeights
from kernels.delta_net import causal_convolution, delta_rule, gates, l2_norm
from kernels.linear import linear
from kernels.norm import rms1_gated


def gated_delta_net(
    x: torch.Tensor,
    weights: GatedDeltaNetWeights,
    config: TextConfig,
    *,
    spans: Sequence[Span],
    recurrent: torch.Tensor,
    convolution: torch.Tensor,
) -> torch.Tensor:
    """Mix normed columns x [T, H]; advance the spans' slots of one layer's states.

    recurrent [slots, Hv, Dv, Dk]; convolution [slots, 3, channels]. Other slots are left alone.
    """
    tokens = x.shape[0]
    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
    columns, z, a, b = linear(x, weights.projection).split_with_sizes(
        [config.conv_channels, config.linear_value_size, value_heads, value_heads], dim=1
    )
    decay, beta = gates(a, b, weights.a_log, weights.dt_bias)
    outputs = []
    for span in spans:
        part = slice(span.begin, span.end)
        mixed, past = causal_convolution(columns[part], convolution[span.state], weights.convolution)
        convolution[span.state] = past
        query_key, value = mixed.split_with_sizes([2 * config.linear_key_size, config.linear_value_size], dim=1)
        query, key = l2_norm(query_key.view(-1, 2 * key_heads, key_dim)).chunk(2, dim=1)
        # The state may be stored in float16; arithmetic is float32.
        output, state = delta_rule(
            query,
            key,
            value.view(-1, value_heads, value_dim),
            decay=decay[part],
            beta=beta[part],
            state=recurrent[span.state].to(torch.float32),
        )
        recurrent[span.state] = state
        outputs.append(output)
    together = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    gated = rms1_gated(together, z.view(tokens, value_heads, value_dim), weights.norm, config.rms_norm_eps)
    return linear(gated.flatten(1), weights.output)
