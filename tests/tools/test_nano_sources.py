"""What the embedded model is made of: committed tokenizer files and a reproducible random checkpoint."""

import hashlib
import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from engine.artifact.vocabulary import parse_vocabulary
from tools.nano import checkpoint
from tools.nano.tokenizer import CONTROL, CONTROL_IN_CONFIG, FOLDER, TAGS


def test_tokenizer_keeps_the_control_tokens_at_the_end() -> None:
    files = [(FOLDER / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")]
    vocabulary = parse_vocabulary(*files)
    assert len(vocabulary.tokens) == 8192
    assert [token.text for token in vocabulary.added] == [*CONTROL, *CONTROL_IN_CONFIG]
    assert [token.id for token in vocabulary.added] == list(range(8192 - 33, 8192))
    assert {token.text for token in vocabulary.added if not token.special} == set(TAGS)
    listed = {token["content"] for token in json.loads(files[0])["added_tokens"]}
    assert not listed.intersection(CONTROL_IN_CONFIG), "the last ones come from tokenizer_config.json alone"
    # The distances of spec/model.md §13, from <|endoftext|>.
    first = vocabulary.added[0].id
    places = {"<|im_start|>": 1, "<|im_end|>": 2, "<|vision_start|>": 9, "<|image_pad|>": 12, "<think>": 24}
    assert {text: vocabulary.added_id(text) for text in places} == {text: first + n for text, n in places.items()}


def test_small_enough() -> None:
    assert sum(math.prod(tensor.shape) for tensor in checkpoint.tensors()) <= 9_000_000


def test_values_depend_on_seed_and_name_alone() -> None:
    tensor = checkpoint.Tensor("x", (64, 100), 0.5, mean=1.0)
    values = tensor.values(1)
    assert values.tobytes() == tensor.values(1).tobytes()
    assert values.tobytes() != tensor.values(2).tobytes()
    assert values.tobytes() != checkpoint.Tensor("y", (64, 100), 0.5, mean=1.0).values(1).tobytes()
    numbers = values.astype(np.float64)
    assert abs(numbers.mean() - 1.0) < 0.03
    assert abs(numbers.std() - 0.5) < 0.02
    even = checkpoint.Tensor("x", (1000,), 2.0, even=True).values(1).astype(np.float64)
    assert even.min() > -2.02
    assert even.max() < 2.02
    assert abs(even.std() - 2.0 / math.sqrt(3)) < 0.1
    # Fixed for good: these bytes are in the committed artifact.
    assert (
        hashlib.sha256(values.tobytes()).hexdigest()
        == "55d09c4694f37d16c52bb48ffac464173432864a87ecbe6d51f0bb139b3e2693"
    )


def test_checkpoint_folder(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "nano")
    config = json.loads((tmp_path / "nano" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5ForCausalLM"]
    with safe_open(tmp_path / "nano" / "model.safetensors", framework="numpy") as file:
        names = set(file.keys())
        assert names == {tensor.name for tensor in checkpoint.tensors()}
        norm = file.get_tensor("model.norm.weight")
    assert norm.dtype == ml_dtypes.bfloat16
    assert {name.split(".")[0] for name in names} == {"model", "lm_head", "mtp"}
    for name in checkpoint.SIDE_FILES:
        assert (tmp_path / "nano" / name).read_bytes() == (FOLDER / name).read_bytes()


def test_transformers_loads_it_and_its_answers_are_sane(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    checkpoint.write(tmp_path)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    ids = torch.arange(100, 164)[None]
    other = ids.clone()
    other[0, 0] = 7
    with torch.no_grad():
        logits, changed = model(ids).logits[0], model(other).logits[0]
    assert logits.isfinite().all()
    assert 1.0 < logits.std() < 4.0
    assert len(set(logits.argmax(-1).tolist())) > 40, "different places have different answers"
    assert 0.01 < (logits[-1] - changed[-1]).norm() / logits[-1].norm() < 1.0, "the first token is remembered"
