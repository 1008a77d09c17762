"""Writes the embedded model as a Hugging Face folder of random weights: `python -m tools.nano.checkpoint FOLDER`.

The model has every kind of layer that Qwen3.8-27B has, in its ratios (three gated-DeltaNet layers to one attention
layer, three value heads a key head, output gates, an MTP layer), in under nine million parameters. It knows nothing:
its answers are noise. The bytes depend on the seed alone: numbers come from the raw words of Philox and from exactly
rounded operations, not from a library's normal distribution, which may change with its version.
"""

import hashlib
import json
import math
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from tools.nano.tokenizer import FOLDER, TOKEN_COUNT

SEED = 20260
SIDE_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")

HIDDEN = 256
LAYERS = 8
HEADS, KEY_VALUE_HEADS, HEAD_DIM = 2, 1, 256
LINEAR_KEY_HEADS, LINEAR_VALUE_HEADS, LINEAR_HEAD_DIM = 1, 3, 128
CONVOLUTION = 4
INTERMEDIATE = 128

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "dtype": "bfloat16",
    "hidden_size": HIDDEN,
    "vocab_size": TOKEN_COUNT,
    "num_hidden_layers": LAYERS,
    "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(LAYERS)],
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_VALUE_HEADS,
    "head_dim": HEAD_DIM,
    "attn_output_gate": True,
    "attention_bias": False,
    "hidden_act": "silu",
    "intermediate_size": INTERMEDIATE,
    "linear_num_key_heads": LINEAR_KEY_HEADS,
    "linear_key_head_dim": LINEAR_HEAD_DIM,
    "linear_num_value_heads": LINEAR_VALUE_HEADS,
    "linear_value_head_dim": LINEAR_HEAD_DIM,
    "linear_conv_kernel_dim": CONVOLUTION,
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


@dataclass(frozen=True)
class Tensor:
    """A random tensor: bell-shaped with `deviation` around `mean`, or even in `mean ± deviation` when `even`."""

    name: str
    shape: tuple[int, ...]
    deviation: float
    mean: float = 0.0
    even: bool = False

    def values(self, seed: int) -> "np.ndarray[Any, np.dtype[ml_dtypes.bfloat16]]":
        """The tensor's bf16 values, a function of seed and name."""
        digest = hashlib.sha256(f"{seed} {self.name}".encode()).digest()
        words = np.random.Philox(key=np.frombuffer(digest[:16], "<u8")).random_raw(math.prod(self.shape))
        quarters = words.astype("<u8").view("<u2").reshape(-1, 4).astype(np.int64)
        if self.even:
            unit = quarters[:, 0] / 32768.0 - 1.0
        else:
            # The sum of four even numbers is nearly normal (Irwin-Hall); its variance is 4/12 of a step of 65536.
            unit = (quarters.sum(axis=1) - 131070) / 65536.0 * math.sqrt(3.0)
        return (self.mean + self.deviation * unit).astype(np.float32).astype(ml_dtypes.bfloat16).reshape(self.shape)


def tensors() -> Iterator[Tensor]:
    """Every tensor of the checkpoint, named as Hugging Face names them (spec/model.md §9.1)."""
    yield Tensor("model.embed_tokens.weight", (TOKEN_COUNT, HIDDEN), 1.0)
    for layer, kind in enumerate(CONFIG["layer_types"]):
        prefix = f"model.layers.{layer}."
        yield from _attention(prefix) if kind == "full_attention" else _delta_net(prefix)
        yield from _feed_forward(prefix)
    yield _norm("model.norm.weight", HIDDEN)
    # Logits have a deviation of about 2: sampling varies, and greedy decoding has clear winners.
    yield Tensor("lm_head.weight", (TOKEN_COUNT, HIDDEN), 2.0 / math.sqrt(HIDDEN))
    yield _matrix("mtp.fc.weight", HIDDEN, 2 * HIDDEN)
    yield _norm("mtp.pre_fc_norm_embedding.weight", HIDDEN)
    yield _norm("mtp.pre_fc_norm_hidden.weight", HIDDEN)
    yield from _attention("mtp.layers.0.")
    yield from _feed_forward("mtp.layers.0.")
    yield _norm("mtp.norm.weight", HIDDEN)


def write(folder: Path, seed: int = SEED) -> None:
    """Write config, weights and side files into `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({tensor.name: tensor.values(seed) for tensor in tensors()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")
    for name in SIDE_FILES:
        shutil.copyfile(FOLDER / name, folder / name)


def _attention(prefix: str) -> Iterator[Tensor]:
    mixer = f"{prefix}self_attn."
    yield _norm(f"{prefix}input_layernorm.weight", HIDDEN)
    yield _matrix(f"{mixer}q_proj.weight", 2 * HEADS * HEAD_DIM, HIDDEN)  # queries and output gates
    yield _matrix(f"{mixer}k_proj.weight", KEY_VALUE_HEADS * HEAD_DIM, HIDDEN)
    yield _matrix(f"{mixer}v_proj.weight", KEY_VALUE_HEADS * HEAD_DIM, HIDDEN)
    yield _norm(f"{mixer}q_norm.weight", HEAD_DIM)
    yield _norm(f"{mixer}k_norm.weight", HEAD_DIM)
    yield _matrix(f"{mixer}o_proj.weight", HIDDEN, HEADS * HEAD_DIM)


def _delta_net(prefix: str) -> Iterator[Tensor]:
    mixer = f"{prefix}linear_attn."
    keys, values = LINEAR_KEY_HEADS * LINEAR_HEAD_DIM, LINEAR_VALUE_HEADS * LINEAR_HEAD_DIM
    channels = 2 * keys + values
    yield _norm(f"{prefix}input_layernorm.weight", HIDDEN)
    yield _matrix(f"{mixer}in_proj_qkv.weight", channels, HIDDEN)
    yield _matrix(f"{mixer}in_proj_z.weight", values, HIDDEN)
    yield _matrix(f"{mixer}in_proj_a.weight", LINEAR_VALUE_HEADS, HIDDEN)
    yield _matrix(f"{mixer}in_proj_b.weight", LINEAR_VALUE_HEADS, HIDDEN)
    yield Tensor(f"{mixer}conv1d.weight", (channels, 1, CONVOLUTION), 1.0 / math.sqrt(CONVOLUTION))
    # Decay rates exp(A_log)·softplus(a + dt_bias) from a few tokens' memory to a few thousand.
    yield Tensor(f"{mixer}A_log", (LINEAR_VALUE_HEADS,), 1.5, even=True)
    yield Tensor(f"{mixer}dt_bias", (LINEAR_VALUE_HEADS,), 2.0, mean=-4.0, even=True)
    yield Tensor(f"{mixer}norm.weight", (LINEAR_HEAD_DIM,), 0.1, mean=1.0)  # the one norm whose weight is not 1 + w
    yield _matrix(f"{mixer}out_proj.weight", HIDDEN, values)


def _feed_forward(prefix: str) -> Iterator[Tensor]:
    yield _norm(f"{prefix}post_attention_layernorm.weight", HIDDEN)
    yield _matrix(f"{prefix}mlp.gate_proj.weight", INTERMEDIATE, HIDDEN)
    yield _matrix(f"{prefix}mlp.up_proj.weight", INTERMEDIATE, HIDDEN)
    yield _matrix(f"{prefix}mlp.down_proj.weight", HIDDEN, INTERMEDIATE)


def _matrix(name: str, rows: int, columns: int) -> Tensor:
    return Tensor(name, (rows, columns), 1.0 / math.sqrt(columns))


def _norm(name: str, size: int) -> Tensor:
    return Tensor(name, (size,), 0.1)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
