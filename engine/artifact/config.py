"""The text component's configuration: a closed set of keys, typed and checked (spec/artifact.md §4.1)."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from engine.exits import ArtifactError

LayerKind = Literal["linear_attention", "full_attention"]

_COMMON = {
    "architectures", "model_type", "hidden_size", "vocab_size", "num_hidden_layers", "layer_types",
    "max_position_embeddings", "tie_word_embeddings", "rms_norm_eps", "num_attention_heads", "num_key_value_heads",
    "head_dim", "rope_parameters", "linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads",
    "linear_value_head_dim", "linear_conv_kernel_dim",
}  # fmt: skip
_DENSE = {"intermediate_size"}
_MOE = {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"}
MAX_ROTARY_DIM = 65536
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
_ROPE = {"rope_theta", "partial_rotary_factor", "mrope_section"}
_MODEL_TYPES = {"qwen3_5_text": "Qwen3_5ForCausalLM", "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"}


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Shape of a mixture-of-experts feed-forward layer (spec/model.md §6)."""

    count: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Shape of the text stack. Exactly one of `intermediate_size` (dense) and `experts` is set."""

    hidden_size: int
    vocab_size: int
    layer_types: tuple[LayerKind, ...]
    max_position_embeddings: int
    tie_word_embeddings: bool
    rms_norm_eps: float
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rotary_dim: int
    mrope_section: tuple[int, int, int]
    linear_num_key_heads: int
    linear_key_head_dim: int
    linear_num_value_heads: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    intermediate_size: int | None
    experts: Experts | None

    @property
    def num_hidden_layers(self) -> int:
        """Decoder layers, without the MTP layer."""
        return len(self.layer_types)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of full-attention layers."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == "full_attention")

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Indices of gated-DeltaNet layers."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == "linear_attention")

    @property
    def query_size(self) -> int:
        """Rows of the query projection, and of the output gate."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Rows of the key projection, and of the value projection."""
        return self.num_key_value_heads * self.head_dim

    @property
    def linear_key_size(self) -> int:
        """Rows of the DeltaNet query projection, and of its key projection."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_size(self) -> int:
        """Rows of the DeltaNet value projection, and of z."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the DeltaNet convolution: query, key, value."""
        return 2 * self.linear_key_size + self.linear_value_size


def parse_text_config(record: Mapping[str, Any]) -> TextConfig:
    """Check and type `components.text.config`.

    Raises:
        ArtifactError: a key is missing, unknown, of the wrong type, or contradicts another.
    """
    model_type = record.get("model_type")
    if not isinstance(model_type, str) or model_type not in _MODEL_TYPES:
        raise ArtifactError(f"text config: model_type is {model_type!r}; known: {', '.join(_MODEL_TYPES)}")
    expected = [_MODEL_TYPES[model_type]]
    if record.get("architectures") != expected:
        raise ArtifactError(f"text config: architectures is {record.get('architectures')!r}, expected {expected!r}")
    moe = model_type == "qwen3_5_moe_text"
    _closed("text config", record, _COMMON | (_MOE if moe else _DENSE))
    rope = record["rope_parameters"]
    if not isinstance(rope, Mapping):
        raise ArtifactError(f"text config: rope_parameters is {rope!r}, not an object")
    _closed("text config: rope_parameters", rope, _ROPE)

    kinds = record["layer_types"]
    if not isinstance(kinds, list) or not kinds or any(kind not in get_args(LayerKind) for kind in kinds):
        raise ArtifactError(f"text config: layer_types must list {' and '.join(get_args(LayerKind))}")
    if len(kinds) != _size(record, "num_hidden_layers"):
        raise ArtifactError(f"text config: {len(kinds)} layer_types for {record['num_hidden_layers']} layers")

    head_dim = _size(record, "head_dim")
    rotary = head_dim * _real(rope, "partial_rotary_factor")
    sections = rope["mrope_section"]
    if not isinstance(sections, list) or len(sections) != 3 or any(type(s) is not int or s < 0 for s in sections):
        raise ArtifactError(f"text config: mrope_section is {sections!r}, not three counts")
    if rotary > MAX_ROTARY_DIM:
        raise ArtifactError(f"text config: {rotary:g} rotary dims are more than {MAX_ROTARY_DIM}")
    if rotary != int(rotary) or int(rotary) % 2 or sum(sections) * 2 != int(rotary):
        raise ArtifactError(f"text config: mrope_section {sections} does not add up to half of {rotary:g} rotary dims")
    if [mrope_axes(sections).count(axis) for axis in range(3)] != sections:
        raise ArtifactError(f"text config: mrope_section {sections} cannot be interleaved")

    config = TextConfig(
        hidden_size=_size(record, "hidden_size"),
        vocab_size=_size(record, "vocab_size"),
        layer_types=tuple(kinds),
        max_position_embeddings=_size(record, "max_position_embeddings"),
        tie_word_embeddings=_flag(record, "tie_word_embeddings"),
        rms_norm_eps=_real(record, "rms_norm_eps"),
        num_attention_heads=_size(record, "num_attention_heads"),
        num_key_value_heads=_size(record, "num_key_value_heads"),
        head_dim=head_dim,
        rope_theta=_real(rope, "rope_theta"),
        rotary_dim=int(rotary),
        mrope_section=(sections[0], sections[1], sections[2]),
        linear_num_key_heads=_size(record, "linear_num_key_heads"),
        linear_key_head_dim=_size(record, "linear_key_head_dim"),
        linear_num_value_heads=_size(record, "linear_num_value_heads"),
        linear_value_head_dim=_size(record, "linear_value_head_dim"),
        linear_conv_kernel_dim=_size(record, "linear_conv_kernel_dim"),
        intermediate_size=None if moe else _size(record, "intermediate_size"),
        experts=_experts(record) if moe else None,
    )
    for query, key, what in (
        (config.num_attention_heads, config.num_key_value_heads, "attention"),
        (config.linear_num_value_heads, config.linear_num_key_heads, "DeltaNet"),
    ):
        if query % key:
            raise ArtifactError(f"text config: {query} {what} heads are not a multiple of {key} key heads")
    return config


def float32(value: float) -> float:
    """The 32-bit float nearest to `value`, which is at most `MAX_FLOAT32`."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def mrope_axes(sections: list[int] | tuple[int, ...]) -> list[int]:
    """Position axis (0 time, 1 height, 2 width) of each rotary pair, interleaved (spec/artifact.md §4.1)."""
    return [
        1 if pair % 3 == 1 and pair < 3 * sections[1] else 2 if pair % 3 == 2 and pair < 3 * sections[2] else 0
        for pair in range(sum(sections))
    ]


def _experts(record: Mapping[str, Any]) -> Experts:
    experts = Experts(
        count=_size(record, "num_experts"),
        per_token=_size(record, "num_experts_per_tok"),
        intermediate_size=_size(record, "moe_intermediate_size"),
        shared_intermediate_size=_size(record, "shared_expert_intermediate_size"),
    )
    if experts.per_token > experts.count:
        raise ArtifactError(f"text config: {experts.per_token} experts a token of {experts.count}")
    return experts


def _closed(where: str, record: Mapping[str, Any], keys: set[str]) -> None:
    missing, unknown = sorted(keys - record.keys()), sorted(record.keys() - keys)
    if missing or unknown:
        raise ArtifactError(f"{where}: missing keys {missing}, unknown keys {unknown}")


def _size(record: Mapping[str, Any], key: str) -> int:
    value = record[key]
    if type(value) is not int or value <= 0:
        raise ArtifactError(f"text config: {key} is {value!r}, not a positive integer")
    return value


def _real(record: Mapping[str, Any], key: str) -> float:
    value = record[key]
    if type(value) not in (int, float) or not 0 < value <= MAX_FLOAT32:
        raise ArtifactError(f"text config: {key} is {value!r}, not a positive 32-bit float")
    return float32(value)


def _flag(record: Mapping[str, Any], key: str) -> bool:
    value = record[key]
    if not isinstance(value, bool):
        raise ArtifactError(f"text config: {key} is {value!r}, not true or false")
    return value
