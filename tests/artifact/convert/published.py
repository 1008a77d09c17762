"""The six published version 3 files, as far as spec/artifact.md §4.4 to §4.10 states them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


def f32(value: float) -> float:
    """The float32 nearest to `value`, as configs store floats."""
    return float(np.float32(value))


def text_config(*, moe: bool) -> dict[str, Any]:
    """§4.1, the text table."""
    layers = 40 if moe else 64
    record: dict[str, Any] = {
        "architectures": ["Qwen3_5MoeForCausalLM" if moe else "Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_moe_text" if moe else "qwen3_5_text",
        "hidden_size": 2048 if moe else 5120,
        "vocab_size": 248320,
        "num_hidden_layers": layers,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)],
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
        "rms_norm_eps": f32(1e-6),
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
    if moe:
        return record | {
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        }
    return record | {"intermediate_size": 17408}


def vision_config(*, moe: bool) -> dict[str, Any]:
    """§4.1, the vision sentence."""
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


def draft_config(name: str) -> dict[str, Any]:
    """§4.1, the draft tables."""
    second = name == "dflash2"
    taps: dict[str, Any] = {
        "target_layer_ids": [5, 19, 33, 47, 61] if second else [1, 6, 11, 16, 22, 27, 32, 37],
        "mask_token_id": 248070 if second else 248077,
    }
    if second:
        taps |= {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}
    return {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "intermediate_size": 17408 if second else 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 5 if second else 6,
        "max_position_embeddings": 262144,
        "rms_norm_eps": f32(1e-6),
        "rope_parameters": {"rope_theta": 1e7},
        "layer_types": ["sliding_attention"] * 5 + ([] if second else ["full_attention"]),
        "sliding_window": 2048 if second else 4096,
        "dflash_config": taps,
    }


def configs(*, moe: bool, draft: str | None) -> dict[str, dict[str, Any]]:
    """Component configs of one published file."""
    records = {
        "text": text_config(moe=moe),
        "mtp": {"architectures": ["Qwen3_5MoeMTP" if moe else "Qwen3_5MTP"]},
        "vision": vision_config(moe=moe),
    }
    return records if draft is None else records | {draft: draft_config(draft)}


# Only the sum is stated for Qwen3.6; the split does not move any tensor.
QWEN36_RESOURCES = {
    "tokenizer.json": 12_834_216 - 16_709 - 8_539 - 202 - 775,
    "tokenizer_config.json": 16_709,
    "chat_template.jinja": 8_539,
    "generation_config.json": 202,
    "preprocessor_config.json": 390,
    "video_preprocessor_config.json": 385,
}
QWEN38_RESOURCES = {
    "tokenizer.json": 12_809_320,
    "tokenizer_config.json": 17_928,
    "chat_template.jinja": 9_712,
    "generation_config.json": 202,
    "preprocessor_config.json": 390,
    "video_preprocessor_config.json": 385,
}


@dataclass(frozen=True)
class Published:
    """What is known of one file: sizes of §4.9, counts of §4.4 to §4.8, anchors of §4.9."""

    recipe: str
    name: str
    moe: bool
    draft: str | None
    resources: dict[str, int]
    tensor_bytes: int
    payload: int
    start: int
    file: int
    objects: int
    bindings: int
    uses: int
    formats: dict[str, int]
    anchors: dict[str, tuple[str, int]]
    provenance_sources: tuple[str, ...] = ("base",)
    row_ranges: dict[str, tuple[int, int]] = field(default_factory=dict)


def _counts(bf16: int, fp32: int, q4: int, q5: int, q6: int, q8: int, **others: int) -> dict[str, int]:
    named = {
        "bf16": bf16, "fp32": fp32, "int32": 1, "q4_g64_fp16": q4, "q5_g64_fp16": q5, "q6_g64_fp16": q6,
        "q8_g32_fp16": q8, **others,
    }  # fmt: skip
    return {format: count for format, count in named.items() if count}


def _anchors(shift: int, draft_context_key: int | None, vocabulary: tuple[int, int], proposal: tuple[int, int]) -> Any:
    second = draft_context_key is not None
    embedding, head_at = (258, 1182) if second else (248, 1116)
    anchors = {
        "text/layers/0/gdn/query": ("weight/000000", 12_834_304 + shift),
        "text/layers/0/gdn/value": ("weight/000001", 23_975_424 + shift),
        "text/layers/0/mlp/gate": ("weight/000002", 65_263_104 + shift),
        "text/layers/3/attention/key": ("weight/000009", 454_219_264 + shift),
        "mtp/layers/0/attention/value": ("weight/000192", 9_287_489_024 + shift),
        "text/token_embedding": (f"weight/{embedding:06d}", vocabulary[0]),
        "text/output_head": (f"weight/{embedding + 1:06d}", vocabulary[1]),
        "proposal/head": (f"weight/{head_at:06d}", proposal[0]),
        "proposal/token_ids": (f"weight/{head_at + 1:06d}", proposal[1]),
    }
    if draft_context_key is not None:
        anchors["dflash2/layers/0/attention/context_key"] = ("weight/000248", draft_context_key)
    return anchors


_KEY_ROWS = {"text/layers/3/attention/key": (31_457_280, 36_700_160)}
_CONTEXT_ROWS = {"dflash2/layers/0/attention/context_key": (20_971_520, 26_214_400)}

PUBLISHED = {
    published.recipe: published
    for published in (
        Published(
            "qwen3_6_27b", "qwen3.6-27b", False, None, QWEN36_RESOURCES,
            17_482_342_304, 17_495_190_528, 348_160, 17_495_538_688, 1124, 1422, 785,
            _counts(582, 96, 183, 246, 3, 7),
            _anchors(0, None, (9_612_169_472, 10_605_449_472), (17_138_150_400, 17_494_666_240)),
            row_ranges=_KEY_ROWS,
        ),
        Published(
            "qwen3_8_27b_official", "qwen3.8-27b", False, "dflash2", QWEN38_RESOURCES,
            20_424_296_864, 20_437_148_928, 372_736, 20_437_521_664, 1190, 1513, 844,
            _counts(627, 96, 183, 246, 1, 30),
            _anchors(3840, 9_612_173_312, (10_726_285_312, 12_077_146_112), (20_080_108_800, 20_436_624_640)),
            ("base", "dflash2"), row_ranges=_KEY_ROWS | _CONTEXT_ROWS,
        ),
        Published(
            "qwen3_8_27b", "qwen3.8-27b", False, "dflash2", QWEN38_RESOURCES,
            18_969_233_824, 18_982_085_888, 372_736, 18_982_458_624, 1190, 1513, 844,
            _counts(627, 96, 240, 190, 2, 28),
            _anchors(3840, 9_612_173_312, (10_726_285_312, 11_401_715_712), (18_625_045_760, 18_981_561_600)),
            ("base", "dflash2", "imatrix"), row_ranges=_KEY_ROWS | _CONTEXT_ROWS,
        ),
        Published(
            "qwen3_6_35b_a3b", "qwen3.6-35b-a3b", True, "dflash", QWEN36_RESOURCES,
            22_770_245_536, 22_783_095_296, 7_389_184, 22_790_484_480, 940, 32_713, 32_184,
            _counts(487, 60, 95, 91, 5, 195),
            {
                "text/layers/0/gdn/query": ("weight/000000", 12_834_304),
                "text/layers/0/moe/experts/0/gate": ("weight/000003", 40_887_808),
                "text/layers/34/moe/experts/0/down": ("weight/000200", 16_986_801_664),
                "text/token_embedding": ("weight/000301", 20_887_150_848),
                "proposal/token_ids": ("weight/000933", 22_782_571_008),
            },
            ("base", "dflash"),
        ),
        Published(
            "qwen3_6_27b_nvfp4", "qwen3.6-27b", False, None, QWEN36_RESOURCES,
            18_310_884_112, 18_323_916_548, 438_272, 18_324_354_820, 1545, 1422, 785,
            {}, {}, ("base", "quantized"),
        ),
        Published(
            "qwen3_8_27b_nvfp4", "qwen3.8-27b", False, "dflash2", QWEN38_RESOURCES,
            23_706_400_256, 23_719_322_628, 393_216, 23_719_715_844, 1246, 1513, 844,
            _counts(579, 264, 55, 54, 1, 28, fp8_e4m3fn_row_bf16=146, nvfp4=112),
            {}, ("base", "quantized", "dflash2"),
        ),
    )
}  # fmt: skip
