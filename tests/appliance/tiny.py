"""A small artifact whose directory is all the planner reads."""

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from engine.artifact.writer import ArtifactWriter, TensorSpec, plan_objects

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "vocab_size": 512,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]},
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 128,
}


def write_tiny(path: Path, *, grown_to: int = 0) -> Path:
    """Write an artifact with an embedding of 512 x 64, an MTP matrix of 64 x 64 and a draft head of 128 x 64."""
    specs = [
        TensorSpec("w.0", (512, 64), "bf16"),
        TensorSpec("w.1", (64, 64), "bf16"),
        TensorSpec("w.2", (128, 64), "bf16"),
    ]
    with ArtifactWriter(
        path,
        plan_objects(specs),
        components={"text": {"config": CONFIG, "resources": {}}},
        bindings={
            "text/token_embedding": {"object": "w.0"},
            "mtp/input_projection": {"object": "w.1"},
            "proposal/head": {"object": "w.2"},
        },
        metadata={"name": "tiny"},
    ) as writer:
        for spec in specs:
            writer.write_direct(spec.id, np.zeros(spec.shape, ml_dtypes.bfloat16))
        writer.commit()
    if grown_to:
        os.truncate(path, grown_to)
    return path
