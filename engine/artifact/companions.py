"""Configurations of the components beside the text stack: vision, MTP and the draft models (spec/artifact.md §4.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any, Literal

from engine.artifact.config import MAX_FLOAT32, TextConfig, float32
from engine.exits import ArtifactError

DraftName = Literal["dflash", "dflash2"]
DRAFTS: tuple[DraftName, ...] = ("dflash", "dflash2")

_VISION_SIZES = (
    "depth", "hidden_size", "intermediate_size", "num_heads", "patch_size", "temporal_patch_size",
    "spatial_merge_size", "num_position_embeddings",
)  # fmt: skip
_VISION_TYPES = ("qwen3_5_vision", "qwen3_5_moe_vision")
_MTP_ARCHITECTURES = ("Qwen3_5MTP", "Qwen3_5MoeMTP")
_DRAFT_SIZES = (
    "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers",
    "max_position_embeddings", "sliding_window",
)  # fmt: skip
_DRAFT_KEYS = {
    *_DRAFT_SIZES, "architectures", "model_type", "rms_norm_eps", "rope_parameters", "layer_types", "dflash_config",
}  # fmt: skip
_DRAFT_ARCHITECTURES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
_CONVOLUTION_SIZES = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """Shape of the vision tower; it always reads three colour channels."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    num_position_embeddings: int

    @property
    def patch_elements(self) -> int:
        """Values of one patch: 3 channels x frames x height x width."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @property
    def merged_size(self) -> int:
        """Width of one merged square of patches."""
        return self.hidden_size * self.spatial_merge_size**2


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """What the second draft architecture adds: gated short convolutions and the candidate selector."""

    kernel_size: int
    group_size: int
    selector_rank: int
    selector_top_k: int


@dataclass(frozen=True, kw_only=True)
class DraftConfig:
    """Shape of a draft model. Its hidden size and vocabulary are the target's."""

    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    layer_types: tuple[str, ...]
    max_position_embeddings: int
    sliding_window: int
    rms_norm_eps: float
    rope_theta: float
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    convolution: Convolution | None


def parse_vision_config(record: Mapping[str, Any]) -> VisionConfig:
    """Check and type `components.vision.config`.

    Raises:
        ArtifactError: a key is missing, unknown, of the wrong type, or contradicts another.
    """
    where = "vision config"
    _closed(where, record, {*_VISION_SIZES, "model_type"})
    if record["model_type"] not in _VISION_TYPES:
        raise ArtifactError(f"{where}: model_type is {record['model_type']!r}; known: {', '.join(_VISION_TYPES)}")
    config = VisionConfig(**{key: _size(where, record, key) for key in _VISION_SIZES})
    if config.hidden_size % config.num_heads:
        raise ArtifactError(f"{where}: hidden_size {config.hidden_size} does not divide into {config.num_heads} heads")
    if isqrt(config.num_position_embeddings) ** 2 != config.num_position_embeddings:
        raise ArtifactError(f"{where}: num_position_embeddings {config.num_position_embeddings} is not a square")
    return config


def parse_mtp_config(record: Mapping[str, Any], text: TextConfig) -> None:
    """Check `components.mtp.config`, which says nothing but the architecture.

    Raises:
        ArtifactError: another key, or an architecture that is not the target's.
    """
    _closed("mtp config", record, {"architectures"})
    expected = [_MTP_ARCHITECTURES[text.experts is not None]]
    if record["architectures"] != expected:
        raise ArtifactError(f"mtp config: architectures is {record['architectures']!r}, expected {expected!r}")


def parse_draft_config(name: DraftName, record: Mapping[str, Any], text: TextConfig) -> DraftConfig:
    """Check and type the configuration of the draft component `name`.

    Raises:
        ArtifactError: a key is missing, unknown, of the wrong type, or contradicts another or the target.
    """
    where = f"{name} config"
    _closed(where, record, _DRAFT_KEYS)
    if record["architectures"] != [_DRAFT_ARCHITECTURES[name]] or record["model_type"] != "qwen3":
        raise ArtifactError(
            f"{where}: {record['architectures']!r} of type {record['model_type']!r}, "
            f"expected [{_DRAFT_ARCHITECTURES[name]!r}] of type 'qwen3'"
        )
    rope, taps = record["rope_parameters"], record["dflash_config"]
    _closed(f"{where}: rope_parameters", rope, {"rope_theta"})
    extra = set(_CONVOLUTION_SIZES) if name == "dflash2" else set()
    _closed(f"{where}: dflash_config", taps, {"target_layer_ids", "mask_token_id"} | extra)
    sizes = {key: _size(where, record, key) for key in _DRAFT_SIZES}
    kinds, layers = record["layer_types"], taps["target_layer_ids"]
    if not isinstance(kinds, list) or any(kind not in ("sliding_attention", "full_attention") for kind in kinds):
        raise ArtifactError(f"{where}: layer_types is {kinds!r}; known: sliding_attention, full_attention")
    if len(kinds) != sizes.pop("num_hidden_layers"):
        raise ArtifactError(f"{where}: {len(kinds)} layer_types for {record['num_hidden_layers']} layers")
    if not isinstance(layers, list) or not layers or any(type(i) is not int for i in layers):
        raise ArtifactError(f"{where}: target_layer_ids is {layers!r}, not a list of layer indices")
    if sorted(set(layers)) != layers or layers[0] < 0 or layers[-1] >= text.num_hidden_layers:
        raise ArtifactError(f"{where}: target_layer_ids {layers} must rise within 0..{text.num_hidden_layers - 1}")
    mask = taps["mask_token_id"]
    if type(mask) is not int or not 0 <= mask < text.vocab_size:
        raise ArtifactError(f"{where}: mask_token_id {mask!r} is not an embedding row of {text.vocab_size}")
    convolution = None
    if name == "dflash2":
        kernel, group, rank, top = (_size(where, taps, key) for key in _CONVOLUTION_SIZES)
        convolution = Convolution(kernel_size=kernel, group_size=group, selector_rank=rank, selector_top_k=top)
        if text.hidden_size % group:
            raise ArtifactError(f"{where}: conv_group_size {group} does not divide hidden size {text.hidden_size}")
    return DraftConfig(
        **sizes,
        layer_types=tuple(kinds),
        rms_norm_eps=_real(where, record, "rms_norm_eps"),
        rope_theta=_real(where, rope, "rope_theta"),
        target_layer_ids=tuple(layers),
        mask_token_id=mask,
        convolution=convolution,
    )


def _closed(where: str, record: Any, keys: set[str]) -> None:
    if not isinstance(record, Mapping):
        raise ArtifactError(f"{where}: {record!r} is not an object")
    missing, unknown = sorted(keys - record.keys()), sorted(record.keys() - keys)
    if missing or unknown:
        raise ArtifactError(f"{where}: missing keys {missing}, unknown keys {unknown}")


def _size(where: str, record: Mapping[str, Any], key: str) -> int:
    value = record[key]
    if type(value) is not int or value <= 0:
        raise ArtifactError(f"{where}: {key} is {value!r}, not a positive integer")
    return value


def _real(where: str, record: Mapping[str, Any], key: str) -> float:
    value = record[key]
    if type(value) not in (int, float) or not 0 < value <= MAX_FLOAT32:
        raise ArtifactError(f"{where}: {key} is {value!r}, not a positive 32-bit float")
    return float32(value)
