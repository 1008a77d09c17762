"""Small random checkpoints, written by `transformers` itself; MTP tensors, which it drops, are added here."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
)

HIDDEN, HEADS, KEY_HEADS, HEAD = 64, 4, 2, 32
COMMON: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "vocab_size": 320,
    "num_hidden_layers": 4,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "max_position_embeddings": 512,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
    "bos_token_id": None,
    "eos_token_id": None,
}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": HIDDEN,
}


def write_checkpoint(
    folder: Path,
    kind: str = "dense",
    *,
    tied: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    add_mtp_block: bool = True,
    **changes: Any,
) -> dict[str, torch.Tensor]:
    """Write a checkpoint of `kind` dense, moe or vision, with tokenizer and template. Returns its tensors.

    The MTP layer has the usual sizes, so it must be left out where `changes` change them.
    """
    torch.manual_seed(7)
    model: Any
    settings = {**COMMON, "tie_word_embeddings": tied, **changes}
    if kind == "dense":
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{"intermediate_size": 96, **settings}))
    elif kind == "moe":
        experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
        sizes: dict[str, Any] = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
        model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**experts, **sizes, **settings))
    else:
        text = Qwen3_5TextConfig(intermediate_size=96, **settings).to_dict()
        model = Qwen3_5ForConditionalGeneration(
            Qwen3_5Config(text_config=text, vision_config=VISION, tie_word_embeddings=tied)
        )
    model = model.to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    model.save_pretrained(folder)
    if add_mtp_block:
        add_mtp(folder, moe=kind == "moe", dtype=dtype)
    write_resources(folder, vision=kind == "vision")
    return load_file(folder / "model.safetensors")


def add_mtp(folder: Path, *, moe: bool, dtype: torch.dtype = torch.bfloat16) -> None:
    """Add random `mtp.*` tensors to model.safetensors."""
    block: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (2 * HEADS * HEAD, HIDDEN),
        "self_attn.k_proj.weight": (KEY_HEADS * HEAD, HIDDEN),
        "self_attn.v_proj.weight": (KEY_HEADS * HEAD, HIDDEN),
        "self_attn.q_norm.weight": (HEAD,),
        "self_attn.k_norm.weight": (HEAD,),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
    }
    if moe:
        block |= {
            "mlp.gate.weight": (4, HIDDEN),
            "mlp.shared_expert_gate.weight": (1, HIDDEN),
            "mlp.experts.gate_up_proj": (4, 64, HIDDEN),
            "mlp.experts.down_proj": (4, HIDDEN, 32),
            "mlp.shared_expert.gate_proj.weight": (48, HIDDEN),
            "mlp.shared_expert.up_proj.weight": (48, HIDDEN),
            "mlp.shared_expert.down_proj.weight": (HIDDEN, 48),
        }
    else:
        block |= {
            "mlp.gate_proj.weight": (96, HIDDEN),
            "mlp.up_proj.weight": (96, HIDDEN),
            "mlp.down_proj.weight": (HIDDEN, 96),
        }
    shapes = {f"mtp.layers.0.{name}": shape for name, shape in block.items()} | {
        "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
        "mtp.pre_fc_norm_embedding.weight": (HIDDEN,),
        "mtp.pre_fc_norm_hidden.weight": (HIDDEN,),
        "mtp.norm.weight": (HIDDEN,),
    }
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors |= {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    save_file(tensors, path)


def write_resources(folder: Path, *, vision: bool) -> None:
    """Write a byte-level tokenizer of 259 ids and the files beside it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {"258": {"content": "<think>", "special": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    (folder / "generation_config.json").write_text("{}")
    if vision:
        for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
            sizes = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
            (folder / name).write_text(json.dumps(sizes))


def shard(folder: Path, target: Path, parts: int) -> None:
    """Copy the checkpoint `folder` to `target` with its tensors spread over `parts` shards and an index."""
    target.mkdir()
    for path in folder.iterdir():
        if path.name != "model.safetensors":
            (target / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    weight_map: dict[str, str] = {}
    for part in range(parts):
        name = f"model-{part + 1:05d}-of-{parts:05d}.safetensors"
        own = dict(sorted(tensors.items())[part::parts])
        save_file(own, target / name)
        weight_map |= dict.fromkeys(own, name)
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
