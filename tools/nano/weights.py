"""Trained weights on disk: a Hugging Face checkpoint folder in bfloat16, in parts small enough to travel."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

SIDE_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
PART_BYTES = 12 * 1024 * 1024
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"


def write_weights(
    folder: Path, config: Mapping[str, Any], state: Mapping[str, torch.Tensor], *, part_bytes: int = PART_BYTES
) -> None:
    """Write config and bfloat16 weights into `folder`, which is made; each file appears whole.

    Parts hold at most `part_bytes` of tensors, or one tensor that is larger by itself.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[dict[str, torch.Tensor]] = [{}]
    filled = 0
    for name, values in state.items():
        tensor = values.detach().to("cpu", torch.bfloat16).contiguous()
        if parts[-1] and filled + tensor.nbytes > part_bytes:
            parts.append({})
            filled = 0
        parts[-1][name] = tensor
        filled += tensor.nbytes
    names = [f"model-{number:05}-of-{len(parts):05}.safetensors" for number in range(1, len(parts) + 1)]
    for name, part in zip(names, parts, strict=True):
        temporary = folder / f".{name}.tmp"
        save_file(part, temporary)
        temporary.replace(folder / name)
    places = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    size = sum(tensor.nbytes for part in parts for tensor in part.values())
    replace_text(folder / INDEX, json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=1))
    replace_text(folder / CONFIG, json.dumps(config, indent=2))


def read_weights(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Config and tensors of a folder that `write_weights` made."""
    places: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    state: dict[str, torch.Tensor] = {}
    for name in dict.fromkeys(places.values()):
        state |= load_file(folder / name)
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
    return config, state


def add_side_files(folder: Path, source: Path) -> None:
    """Copy tokenizer, template and generation settings beside the weights."""
    for name in SIDE_FILES:
        shutil.copyfile(source / name, folder / name)


def replace_text(path: Path, text: str) -> None:
    """Write a small file in one step."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
