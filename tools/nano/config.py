"""Shapes of the embedded models, as the `config.json` of a Hugging Face checkpoint would state them.

Both have the head dims, layer rule, gates and MTP layer of the big models, so that the same kernels serve them, and at
most nine million parameters. `nano` is shaped like the 27B: dense, three DeltaNet value heads a key head. `nano-moe` is
shaped like the 35B: eight routed experts of each token and a shared one, two value heads a key head.
"""

from collections.abc import Mapping
from typing import Any

TOKEN_COUNT = 8192
LAYERS = 8

_COMMON: dict[str, Any] = {
    "dtype": "bfloat16",
    "vocab_size": TOKEN_COUNT,
    "num_hidden_layers": LAYERS,
    "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(LAYERS)],
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "attn_output_gate": True,
    "attention_bias": False,
    "hidden_act": "silu",
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}

NANO: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    **_COMMON,
    "hidden_size": 256,
    "linear_num_value_heads": 3,
    "intermediate_size": 128,
}

NANO_MOE: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    **_COMMON,
    "hidden_size": 128,
    "linear_num_value_heads": 2,
    "num_experts": 16,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
}

MODELS: Mapping[str, dict[str, Any]] = {"nano": NANO, "nano-moe": NANO_MOE}
