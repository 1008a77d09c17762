"""The official artifacts of version 2, by identity and number of objects (spec/artifact.md §1.6, §4.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.artifact.config import float32
from engine.exits import ArtifactError


@dataclass(frozen=True)
class Shape:
    """One kind of version 2 file: how it is recognised, and the component configs that it left unsaid."""

    model_id: str
    weights_id: str
    objects: int
    bindings: int
    configs: Mapping[str, Mapping[str, Any]]
    proposal_rows: int


def find_shape(model_id: str, weights_id: str, objects: int, shapes: Sequence[Shape]) -> Shape:
    """The shape of a file.

    Raises:
        ArtifactError: it is none of `shapes`; the message lists them.
    """
    for shape in shapes:
        if (shape.model_id, shape.weights_id, shape.objects) == (model_id, weights_id, objects):
            return shape
    known = "; ".join(f"{shape.model_id} {shape.weights_id} with {shape.objects}" for shape in shapes)
    raise ArtifactError(
        f"the file is {model_id!r} {weights_id!r} with {objects} objects, which is not an official artifact of "
        f"version 2; those are: {known}"
    )


_EPSILON = float32(1e-6)


def _text(*, moe: bool) -> dict[str, Any]:
    layers = 40 if moe else 64
    record: dict[str, Any] = {
        "architectures": ["Qwen3_5MoeForCausalLM" if moe else "Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_moe_text" if moe else "qwen3_5_text",
        "hidden_size": 2048 if moe else 5120,
        "vocab_size": 248320,
        "num_hidden_layers": layers,
        "layer_types": ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(layers)],
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
        "rms_norm_eps": _EPSILON,
        "num_attention_heads": 16 if moe else 24,
        "num_key_value_heads": 2 if moe else 4,
        "head_dim": 256,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 32 if moe else 48,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    if not moe:
        return record | {"intermediate_size": 17408}
    return record | {
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }


def _vision(*, moe: bool) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_moe_vision" if moe else "qwen3_5_vision",
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
    }


def _draft(architecture: str, layer_types: list[str], intermediate: int, window: int, taps: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": "qwen3",
        "intermediate_size": intermediate,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": len(layer_types),
        "max_position_embeddings": 262144,
        "rms_norm_eps": _EPSILON,
        "rope_parameters": {"rope_theta": 1e7},
        "layer_types": layer_types,
        "sliding_window": window,
        "dflash_config": taps,
    }


_SLIDING, _FULL = "sliding_attention", "full_attention"
_DFLASH = _draft(
    "DFlashDraftModel",
    [_SLIDING] * 5 + [_FULL],
    6144,
    4096,
    {"target_layer_ids": [1, 6, 11, 16, 22, 27, 32, 37], "mask_token_id": 248077},
)
_DFLASH2 = _draft(
    "DFlash2DraftModel",
    [_SLIDING] * 5,
    17408,
    2048,
    {
        "target_layer_ids": [5, 19, 33, 47, 61],
        "mask_token_id": 248070,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
)


def _components(*, moe: bool) -> dict[str, Any]:
    return {
        "text": _text(moe=moe),
        "mtp": {"architectures": ["Qwen3_5MoeMTP" if moe else "Qwen3_5MTP"]},
        "vision": _vision(moe=moe),
    }


_DENSE = _components(moe=False)
_DENSE2 = _DENSE | {"dflash2": _DFLASH2}
_MOE = _components(moe=True) | {"dflash": _DFLASH}
_ROWS = 131072

OFFICIAL: tuple[Shape, ...] = (
    Shape("qwen3.6-27b", "groupwise-int", 1124, 1422, _DENSE, _ROWS),
    Shape("qwen3.6-27b", "nvfp4", 1307, 1422, _DENSE, _ROWS),
    Shape("qwen3.8-27b", "groupwise-int", 1124, 1422, _DENSE, _ROWS),
    Shape("qwen3.8-27b", "groupwise-int", 1190, 1513, _DENSE2, _ROWS),
    Shape("qwen3.8-27b", "nvfp4", 1124, 1422, _DENSE, _ROWS),
    Shape("qwen3.8-27b", "nvfp4", 1190, 1513, _DENSE2, _ROWS),
    Shape("qwen3.6-35b-a3b", "groupwise-int", 940, 32713, _MOE, _ROWS),
)
"""The seven kinds of file that can be upgraded."""
