"""Checkpoint headers and tokenizer files: what is read, and each refusal."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from engine.artifact.companions import parse_vision_config
from engine.artifact.config import parse_text_config
from engine.artifact.convert.sources import Checkpoint, CheckpointError
from engine.artifact.convert.tensors import Source, cast, mtp_sources, text_sources, vision_sources
from engine.artifact.parameters import component_registry
from tests.artifact.convert.published import configs, text_config, vision_config


def write_file(path: Path, header: Any, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_reads_elements_of_every_type(tmp_path: Path) -> None:
    bf16 = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16)
    f32 = np.array([1.5, -2.5], np.float32)
    write_file(
        tmp_path / "model.safetensors",
        {
            "__metadata__": {"format": "pt"},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]},
            "a": {"dtype": "BF16", "shape": [3, 2], "data_offsets": [0, 12]},
        },
        bf16.tobytes() + f32.tobytes(),
    )
    with Checkpoint.open(tmp_path) as checkpoint:
        assert sorted(checkpoint) == ["a", "b"]
        assert checkpoint.tensors["a"].shape == (3, 2)
        np.testing.assert_array_equal(checkpoint.read("a", 2, 5), bf16[2:5])
        np.testing.assert_array_equal(checkpoint.read("b", 0, 2), f32)


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD_HEADERS: list[tuple[Any, str]] = [
    (b"{", "is not JSON"),
    (b"[]", "is not a JSON object"),
    (b'{"a":1,"a":2}', "has the member 'a' twice"),
    (b"\xff\xfe", "is not UTF-8"),
    (b"[" * 5000 + b"]" * 5000, "is nested too deeply|is not a JSON object"),
    ({"a": GOOD | {"data_offsets": [0, 9]}}, "has 9 bytes for shape"),
    ({"a": GOOD | {"shape": [4], "data_offsets": [0, 16]}}, "outside the file"),
    ({"a": GOOD | {"shape": [2**60], "data_offsets": [0, 2**62]}}, "outside the file"),
    ({"a": GOOD | {"shape": [-2]}}, "the record of tensor 'a'"),
    ({"a": GOOD | {"shape": [True, 2]}}, "the record of tensor 'a'"),
    ({"a": GOOD | {"data_offsets": [0]}}, "the record of tensor 'a'"),
    ({"a": None}, "the record of tensor 'a'"),
    ({"a": GOOD | {"dtype": "F4"}}, "is of type 'F4'; known: BF16"),
    ({"a": GOOD, "b": GOOD}, "lies over the one before it"),
]


@pytest.mark.parametrize(("header", "message"), BAD_HEADERS)
def test_bad_headers(tmp_path: Path, header: Any, message: str) -> None:
    write_file(tmp_path / "model.safetensors", header, bytes(8))
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"abc", (2**63).to_bytes(8, "little"), (100).to_bytes(8, "little") + b"{}"])
def test_truncated_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        Checkpoint.open(tmp_path)


def test_file_that_shrinks_while_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_file(path, {"a": GOOD}, bytes(8))
    with Checkpoint.open(tmp_path) as checkpoint:
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(CheckpointError, match="ends inside tensor 'a'"):
            checkpoint.read("a", 0, 2)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"{}", "does not map tensors to files"),
        (b'{"weight_map": 3}', "does not map tensors to files"),
        (b'{"weight_map": {"a": "../x.safetensors"}}', "not a file beside it"),
        (b'{"weight_map": {"a": 3}}', "not a file beside it"),
        (b'{"weight_map": {"a": "b.safetensors"}}', "b.safetensors is missing"),
        (b'{"weight_map": {"c": "a.safetensors"}}', "which does not have it"),
    ],
)
def test_bad_index(tmp_path: Path, index: bytes, message: str) -> None:
    write_file(tmp_path / "a.safetensors", {"a": GOOD}, bytes(8))
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(("moe", "tensors"), [(False, 1199), (True, 1045)])
def test_sources_use_every_tensor_of_the_published_checkpoints(moe: bool, tensors: int) -> None:
    """The tensor counts of Qwen3.6-27B and Qwen3.6-35B-A3B (spec/artifact.md §6.3)."""
    text = parse_text_config(text_config(moe=moe))
    vision = parse_vision_config(vision_config(moe=moe))

    def has(name: str) -> bool:
        return False  # the published experts are stacked

    sources = text_sources(text, "model.language_model.", has) | mtp_sources(text, has)
    sources |= vision_sources(vision, text.hidden_size)
    assert len({source.tensor for source in sources.values()}) == tensors
    records = configs(moe=moe, draft=None)
    assert set(sources) == {parameter.name for parameter in component_registry(records)}


def test_runs_of_an_interleaved_source() -> None:
    gate = Source("q_proj", (24, 1), begin=4, run=4, stride=8)
    rows = [row for begin, end in gate.runs(0, 12) for row in range(begin, end)]
    assert rows == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]
    assert list(gate.runs(2, 9)) == [(6, 8), (12, 16), (20, 21)]


def test_cast_rounds_to_nearest_even_and_keeps_bits() -> None:
    bits = np.array([0x8000, 0x7FC1, 0x0001, 0xFF80], np.uint16).view(ml_dtypes.bfloat16)
    assert cast(bits, "bf16").view(np.uint16).tolist() == [0x8000, 0x7FC1, 0x0001, 0xFF80]
    halves = np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32).view(np.float32)
    assert cast(halves, "bf16").view(np.uint16).tolist() == [0x3F80, 0x3F82, 0x3F81]
    assert cast(bits[:1], "fp32").view(np.uint32).tolist() == [0x80000000]
