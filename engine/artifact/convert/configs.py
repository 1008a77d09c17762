"""A checkpoint's config.json as normalised component configs, refusing what the model code cannot do (§4.1, §5.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.artifact.companions import parse_mtp_config, parse_vision_config
from engine.artifact.config import TextConfig, parse_text_config
from engine.artifact.convert.sources import CheckpointError
from engine.exits import ConfigurationError

CONVERTIBLE = ("text", "mtp", "vision")
"""Components that a conversion can make. The planner also knows the drafts and the proposal head."""

_ARCHITECTURES = {
    "Qwen3_5ForConditionalGeneration": False,
    "Qwen3_5ForCausalLM": False,
    "Qwen3_5MoeForConditionalGeneration": True,
    "Qwen3_5MoeForCausalLM": True,
}

# Settings that change the mathematics, with the one value the model code has. Absent means that value.
_TEXT_ONLY_VALUES: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "mtp_use_dedicated_embeddings": False,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "use_sliding_window": False,
    "rope_scaling": None,
    "quantization_config": None,
}
_ROPE_ONLY_VALUES: dict[str, Any] = {"mrope_interleaved": True, "rope_type": "default", "type": "default", "factor": 1}
_VISION_ONLY_VALUES: dict[str, Any] = {
    "in_channels": 3,
    "hidden_act": "gelu_pytorch_tanh",
    "deepstack_visual_indexes": [],
}
_VISION_ROPE = {"rope_type": "axial", "rope_theta": 10000}

_COPIED = (
    "hidden_size", "vocab_size", "num_hidden_layers", "max_position_embeddings", "num_attention_heads",
    "num_key_value_heads", "head_dim", "linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads",
    "linear_value_head_dim", "linear_conv_kernel_dim",
)  # fmt: skip
_COPIED_DENSE = ("intermediate_size",)
_COPIED_MOE = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
_COPIED_VISION = (
    "depth", "hidden_size", "intermediate_size", "num_heads", "patch_size", "temporal_patch_size",
    "spatial_merge_size", "num_position_embeddings",
)  # fmt: skip
# Read by no part of the mathematics.
_HARMLESS = {
    "architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range",
    "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "output_router_logits",
    "router_aux_loss_coef", "rope_parameters", "layer_types", "full_attention_interval", "tie_word_embeddings",
    "rms_norm_eps", "partial_rotary_factor", "rope_theta", "mtp_num_hidden_layers", "language_model_only",
    "text_config", "vision_config", "image_token_id", "video_token_id", "vision_start_token_id",
    "vision_end_token_id", "out_hidden_size", "chunk_size_feed_forward", "id2label", "label2id", "problem_type",
    "return_dict", "output_attentions", "output_hidden_states", "is_encoder_decoder", "_name_or_path",
}  # fmt: skip


@dataclass(frozen=True)
class ModelConfigs:
    """Configs of the chosen components, and how the checkpoint names its text tensors.

    `ignored` are settings this version has never heard of; the report lists them.
    """

    records: dict[str, dict[str, Any]]
    text: TextConfig
    prefix: str
    ignored: tuple[str, ...]


def read_configs(config: Mapping[str, Any], components: Sequence[str]) -> ModelConfigs:
    """Normalise config.json for `components`.

    Raises:
        ConfigurationError: a component this version cannot convert.
        CheckpointError: another architecture, a missing setting, or one whose value means other mathematics.
    """
    for component in components:
        if component not in CONVERTIBLE:
            raise ConfigurationError(f"component {component!r} cannot be converted; {', '.join(CONVERTIBLE)} can")
    if "text" not in components:
        raise ConfigurationError("an artifact always has the component text; add it to the components")
    moe = _family(config)
    wrapped = "text_config" in config
    text = config["text_config"] if wrapped else config
    if not isinstance(text, Mapping):
        raise CheckpointError(f"config.json: text_config is {text!r}, not an object")
    if config.get("quantization_config") is not None:
        raise CheckpointError("config.json: quantization_config is set; only unquantised checkpoints convert")

    record = _text_record(config, text, moe=moe)
    typed = parse_text_config(record)
    records = {"text": record}
    if "mtp" in components:
        layers = text.get("mtp_num_hidden_layers", 1)
        if layers != 1:
            raise CheckpointError(f"config.json: mtp_num_hidden_layers is {layers!r}; mtp converts with exactly 1")
        records["mtp"] = {"architectures": ["Qwen3_5MoeMTP" if moe else "Qwen3_5MTP"]}
        parse_mtp_config(records["mtp"], typed)
    if "vision" in components:
        records["vision"] = _vision_record(config.get("vision_config"), typed, moe=moe)
        parse_vision_config(records["vision"])
    known = _HARMLESS | {*_COPIED, *_COPIED_DENSE, *_COPIED_MOE, *_TEXT_ONLY_VALUES}
    ignored = sorted({key for part in (config, text) for key in part if key not in known})
    return ModelConfigs(records, typed, "model.language_model." if wrapped else "model.", tuple(ignored))


def _family(config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint is of the mixture-of-experts family."""
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in _ARCHITECTURES:
        raise CheckpointError(f"config.json: architectures is {names!r}; known: {', '.join(_ARCHITECTURES)}")
    return _ARCHITECTURES[names[0]]


def _text_record(config: Mapping[str, Any], text: Mapping[str, Any], *, moe: bool) -> dict[str, Any]:
    _only("config.json", text, _TEXT_ONLY_VALUES)
    rope = text.get("rope_parameters")
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"config.json: rope_parameters is {rope!r}, not an object")
    _only("config.json: rope_parameters", rope, _ROPE_ONLY_VALUES)
    known = {*_ROPE_ONLY_VALUES, "rope_theta", "partial_rotary_factor", "mrope_section"}
    unknown = sorted(rope.keys() - known)
    if unknown:
        raise CheckpointError(f"config.json: rope_parameters has {unknown[0]!r}; known: {', '.join(sorted(known))}")
    copied = _COPIED + (_COPIED_MOE if moe else _COPIED_DENSE)
    missing = [key for key in (*copied, "rms_norm_eps") if key not in text]
    if missing:
        raise CheckpointError(f"config.json lacks {', '.join(missing)}")
    return {
        "architectures": ["Qwen3_5MoeForCausalLM" if moe else "Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_moe_text" if moe else "qwen3_5_text",
        **{key: text[key] for key in copied},
        "layer_types": _layer_types(text),
        "tie_word_embeddings": _tied(config, text),
        "rms_norm_eps": _float32("rms_norm_eps", text["rms_norm_eps"]),
        "rope_parameters": {
            "rope_theta": _float32("rope_theta", rope.get("rope_theta", text.get("rope_theta"))),
            "partial_rotary_factor": _float32(
                "partial_rotary_factor", rope.get("partial_rotary_factor", text.get("partial_rotary_factor"))
            ),
            # The sections that `transformers` uses when a configuration names none.
            "mrope_section": rope.get("mrope_section", [11, 11, 10]),
        },
    }


def _layer_types(text: Mapping[str, Any]) -> Any:
    if "layer_types" in text:
        return text["layer_types"]
    interval, layers = text.get("full_attention_interval", 4), text["num_hidden_layers"]
    if type(interval) is not int or interval <= 0 or type(layers) is not int:
        raise CheckpointError(f"config.json: full_attention_interval is {interval!r} for {layers!r} layers")
    return ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(layers)]


def _tied(config: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    stated = [part["tie_word_embeddings"] for part in (config, text) if "tie_word_embeddings" in part]
    if any(value is not stated[0] for value in stated):
        raise CheckpointError(
            f"config.json: tie_word_embeddings is {stated[0]!r} for the model and {stated[1]!r} in text_config"
        )
    return bool(stated and stated[0])


def _vision_record(vision: Any, text: TextConfig, *, moe: bool) -> dict[str, Any]:
    if not isinstance(vision, Mapping):
        raise CheckpointError("config.json has no vision_config; leave the component vision out")
    where = "config.json: vision_config"
    _only(where, vision, _VISION_ONLY_VALUES)
    if "rope_parameters" in vision:
        _only(f"{where}: rope_parameters", vision["rope_parameters"], _VISION_ROPE)
    if vision.get("out_hidden_size") != text.hidden_size:
        raise CheckpointError(
            f"{where}: out_hidden_size is {vision.get('out_hidden_size')!r}; the text stack has {text.hidden_size}"
        )
    missing = [key for key in _COPIED_VISION if key not in vision]
    if missing:
        raise CheckpointError(f"{where} lacks {', '.join(missing)}")
    return {
        "model_type": "qwen3_5_moe_vision" if moe else "qwen3_5_vision",
        **{key: vision[key] for key in _COPIED_VISION},
    }


def _only(where: str, record: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if key in record and record[key] != value:
            raise CheckpointError(f"{where}: {key} is {record[key]!r}; this version has only {value!r}")


def _float32(key: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise CheckpointError(f"config.json: {key} is {value!r}, not a number")
    return float(np.float32(value))
