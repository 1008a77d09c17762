"""The numbers of a text stack that memory depends on, and the sizes that follow from them alone."""

from dataclasses import dataclass

from engine.artifact.config import TextConfig
from engine.plan.formats import KvFormat

PAGE_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Shape of a model as the planner sees it. The MTP layer has the shape of one attention layer."""

    layers: int
    attention_layers: int
    hidden_size: int
    vocabulary_rows: int
    token_count: int
    query_heads: int
    key_value_heads: int
    head_dim: int
    feed_forward_size: int  # width for one token: dense, or selected plus shared experts
    experts_per_token: int  # 0 for a dense model
    linear_key_heads: int
    linear_key_dim: int
    linear_value_heads: int
    linear_value_dim: int
    conv_taps: int
    max_positions: int

    @classmethod
    def of(cls, config: TextConfig, token_count: int | None = None) -> "Geometry":
        """Geometry of an artifact's text stack; `token_count` is the tokenizer's (default: every row)."""
        experts = config.experts
        if experts is None:
            assert config.intermediate_size is not None
            feed_forward = config.intermediate_size
        else:
            feed_forward = experts.per_token * experts.intermediate_size + experts.shared_intermediate_size
        return cls(
            layers=config.num_hidden_layers,
            attention_layers=len(config.attention_layers),
            hidden_size=config.hidden_size,
            vocabulary_rows=config.vocab_size,
            token_count=config.vocab_size if token_count is None else token_count,
            query_heads=config.num_attention_heads,
            key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            feed_forward_size=feed_forward,
            experts_per_token=0 if experts is None else experts.per_token,
            linear_key_heads=config.linear_num_key_heads,
            linear_key_dim=config.linear_key_head_dim,
            linear_value_heads=config.linear_num_value_heads,
            linear_value_dim=config.linear_value_head_dim,
            conv_taps=config.linear_conv_kernel_dim,
            max_positions=config.max_position_embeddings,
        )

    @property
    def linear_layers(self) -> int:
        """Gated-DeltaNet layers."""
        return self.layers - self.attention_layers

    @property
    def conv_channels(self) -> int:
        """Channels of the DeltaNet convolution: query, key, value."""
        return 2 * self.linear_key_heads * self.linear_key_dim + self.linear_value_heads * self.linear_value_dim


def pages_of(tokens: int) -> int:
    """Pages that hold `tokens`."""
    return -(-tokens // PAGE_TOKENS)


def key_value_bytes(geometry: Geometry, form: KvFormat, layers: int | None = None) -> int:
    """Bytes of KV cache a token, for `layers` attention layers (default: all of them; spec/kv-formats.md §2)."""
    count = geometry.attention_layers if layers is None else layers
    return count * geometry.key_value_heads * form.row_bytes(geometry.head_dim)


def state_image_bytes(
    geometry: Geometry, *, fp16: bool, history_bytes: int = 2, tail_hidden: bool = True, ring_bytes: int = 0
) -> int:
    """Bytes of one state image: recurrent state, convolution history, tail hidden, drafter rings.

    spec/model.md §10.1. `fp16` is about the recurrent state alone; `history_bytes` are those of one value of the
    convolution history.
    """
    recurrent = geometry.linear_layers * geometry.linear_value_heads * geometry.linear_key_dim
    recurrent *= geometry.linear_value_dim * (2 if fp16 else 4)
    history = geometry.linear_layers * geometry.conv_channels * (geometry.conv_taps - 1) * history_bytes
    return recurrent + history + (geometry.hidden_size * 2 if tail_hidden else 0) + ring_bytes


def replay_record_bytes(geometry: Geometry) -> int:
    """Bytes that one verified column of one lane leaves until its round commits (spec/kv-formats.md §8)."""
    heads = geometry.linear_value_heads
    inputs = geometry.linear_key_heads * geometry.linear_key_dim + heads * geometry.linear_value_dim
    return geometry.linear_layers * (2 * inputs + 8 * heads + 2 * geometry.conv_channels)
