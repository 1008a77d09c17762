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

from tools.nano.config import NANO, TOKEN_COUNT
from tools.nano.tokenizer import FOLDER

SEED = 20260
SIDE_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")

CONFIG = NANO
HIDDEN: int = CONFIG["hidden_size"]
HEADS: int = CONFIG["num_attention_heads"]
KEY_VALUE_HEADS: int = CONFIG["num_key_value_heads"]
HEAD_DIM: int = CONFIG["head_dim"]
LINEAR_KEY_HEADS: int = CONFIG["linear_num_key_heads"]
LINEAR_VALUE_HEADS: int = CONFIG["linear_num_value_heads"]
LINEAR_HEAD_DIM: int = CONFIG["linear_key_head_dim"]
CONVOLUTION: int = CONFIG["linear_conv_kernel_dim"]
INTERMEDIATE: int = CONFIG["intermediate_size"]


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
