"""Importance matrices: collected like transformers' activations say, imported like llama.cpp wrote them."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.artifact.config import parse_text_config
from engine.artifact.convert.gguf import import_importance
from engine.artifact.convert.importance import ImportanceMatrix
from engine.artifact.convert.sources import CheckpointError
from engine.cli.artifact import main
from engine.exits import ConfigurationError, ExitCode, NoDeviceError
from engine.quality import subject
from engine.quality.importance import collect
from engine.quality.subject import Settings, Subject
from tests.artifact.builder import COMPONENTS
from tests.quality.conftest import Small

TEXT = "The quick brown fox jumps over the lazy dog. " * 5
MODULES = {
    "attention/query": "self_attn.q_proj",
    "attention/gate": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.o_proj",
    "gdn/query": "linear_attn.in_proj_qkv",
    "gdn/key": "linear_attn.in_proj_qkv",
    "gdn/value": "linear_attn.in_proj_qkv",
    "gdn/z": "linear_attn.in_proj_z",
    "gdn/output": "linear_attn.out_proj",
    "mlp/gate": "mlp.gate_proj",
    "mlp/up": "mlp.up_proj",
    "mlp/down": "mlp.down_proj",
    "moe/shared/gate": "mlp.shared_expert.gate_proj",
    "moe/shared/up": "mlp.shared_expert.up_proj",
    "moe/shared/down": "mlp.shared_expert.down_proj",
}


@pytest.mark.parametrize("family", ["dense", "moe"])
def test_collected_vectors_are_the_mean_squares_of_what_enters(
    family: str, small: Callable[[str], Small], tmp_path: Path
) -> None:
    model = small(family)
    text, out = tmp_path / "text.txt", tmp_path / "importance.safetensors"
    text.write_text(TEXT)
    assert main(["imatrix", str(model.artifact), "--text", str(text), "--out", str(out), "--context", "64"]) == 0
    matrix = ImportanceMatrix.read(out)
    ids = Subject(model.artifact).tokenizer.encode(TEXT)
    assert matrix.source == f"{family} over text.txt, {len(ids)} tokens"

    oracle: Any = AutoModelForCausalLM.from_pretrained(model.folder, dtype=torch.float32)
    oracle.eval()
    squares: dict[str, list[torch.Tensor]] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(module: object, inputs: tuple[torch.Tensor, ...], *_: object) -> None:
            squares.setdefault(name, []).append(inputs[0].double().square().reshape(-1, inputs[0].shape[-1]))

        return hook

    for name, module in oracle.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(watch(name))
    with torch.inference_mode():
        for begin in range(0, len(ids), 64):
            oracle(torch.tensor([ids[begin : begin + 64]]))
    checked = 0
    for name, vector in matrix.vectors.items():
        layer, role = name.removeprefix("text/layers/").split("/", 1)
        if role.startswith("moe/experts/"):
            continue
        expected = torch.cat(squares[f"model.layers.{layer}.{MODULES[role]}"]).mean(0).numpy()
        np.testing.assert_allclose(vector, expected, rtol=2e-3, atol=1e-6 * expected.max(), err_msg=name)
        checked += 1
    assert checked == 4 * 8
    if family == "moe":
        # All experts see every token here.
        for number in range(4):
            shared = matrix.vectors[f"text/layers/{number}/moe/shared/gate"]
            for expert in range(4):
                for part in ("gate", "up"):
                    vector = matrix.vectors[f"text/layers/{number}/moe/experts/{expert}/{part}"]
                    np.testing.assert_allclose(vector, shared, rtol=1e-6)
                assert matrix.vectors[f"text/layers/{number}/moe/experts/{expert}/down"].shape == (32,)
    assert model.convert(f"nano_{'moe_' if family == 'moe' else ''}search", imatrix=out).exists()


def test_command_refusals(small: Callable[[str], Small], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(small("dense").artifact)
    text = tmp_path / "text.txt"
    text.write_text("a")
    for words, code, message in (
        (["--text", str(text)], ExitCode.CONFIGURATION, "gives no two tokens to read"),
        (["--text", str(tmp_path / "none")], ExitCode.CONFIGURATION, "cannot be read: No such file"),
        (["--text", str(text), "--context", "1"], ExitCode.CONFIGURATION, "context is 1"),
        (["--text", str(text), "--tokens", "9"], ExitCode.CONFIGURATION, "tokens is 9, less than"),
        (["--gguf", str(text)], ExitCode.BAD_ARTIFACT, "is not a GGUF file"),
    ):
        assert main(["imatrix", model, *words, "--out", str(tmp_path / "out")]) == code
        assert message in capsys.readouterr().err
    assert main(["imatrix", model, "--text", str(text), "--out", str(text)]) == ExitCode.BAD_ARTIFACT
    assert "exists already" in capsys.readouterr().err


def test_what_the_cpu_cannot_measure_is_refused(small: Callable[[str], Small], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="kv dtype 'rk8v4' cannot be measured on the CPU; use fp32 or bf16"):
        Settings(kv_dtype="rk8v4")
    monkeypatch.setattr(subject, "CPU_LIMIT", 1000)
    with pytest.raises(NoDeviceError, match="the CPU takes at most 1000"):
        Subject(small("dense").artifact)


def test_progress_counts_tokens(small: Callable[[str], Small]) -> None:
    seen: list[int] = []
    matrix = collect(Subject(small("dense").artifact), [[1, 2, 3], [4, 5]], "x", seen.append)
    assert seen == [3, 5]
    assert len(matrix.vectors) == 32


def write_gguf(path: Path, tensors: dict[str, npt.NDArray[np.float32]]) -> None:
    """A GGUF file of version 3 with a few values of several types before its tensors."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    values = string("general.type") + struct.pack("<I", 8) + string("imatrix")
    values += string("imatrix.chunk_count") + struct.pack("<II", 4, 7)
    values += string("imatrix.datasets") + struct.pack("<IIQ", 9, 8, 2) + string("a.txt") + string("b.txt")
    values += string("general.alignment") + struct.pack("<II", 4, 64)
    records, data = b"", b""
    for name, tensor in tensors.items():
        data = data.ljust(-(-len(data) // 64) * 64, b"\0")
        shape = tensor.shape[::-1]
        records += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += tensor.tobytes()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 4) + values + records
    path.write_bytes(head.ljust(-(-len(head) // 64) * 64, b"\0") + data)


def test_import_from_llama_cpp(tmp_path: Path) -> None:
    config = parse_text_config(COMPONENTS["text"]["config"])  # layer 0 DeltaNet, 2 key and 4 value heads of 8; layer 1
    random = np.random.default_rng(4)
    tensors: dict[str, npt.NDArray[np.float32]] = {}

    def add(name: str, size: int, count: float) -> npt.NDArray[np.float32]:
        sums = random.random((1, size)).astype(np.float32)
        tensors[f"{name}.in_sum2"] = sums
        tensors[f"{name}.counts"] = np.array([[count]], np.float32)
        return np.asarray(sums[0] / np.float32(max(count, 1)))

    packed = add("blk.0.attn_qkv.weight", 64, 10)
    output = add("blk.0.ssm_out.weight", 32, 10)
    query = add("blk.1.attn_q.weight", 64, 0)
    down = add("blk.1.ffn_down.weight", 128, 3)
    write_gguf(tmp_path / "imatrix.gguf", tensors)
    matrix = import_importance(tmp_path / "imatrix.gguf", config)
    assert matrix.source == "imatrix.gguf"
    # llama.cpp's head j * 2 + h is head h * 2 + j of the checkpoint.
    untiled = np.empty(32, np.float32)
    for j in range(2):
        for h in range(2):
            untiled[(h * 2 + j) * 8 : (h * 2 + j + 1) * 8] = output[(j * 2 + h) * 8 : (j * 2 + h + 1) * 8]
    expected = {
        **{f"text/layers/0/gdn/{role}": packed for role in ("query", "key", "value")},
        "text/layers/0/gdn/output": untiled,
        **{f"text/layers/1/attention/{role}": query for role in ("query", "gate")},
        "text/layers/1/mlp/down": down,
    }
    assert matrix.vectors.keys() == expected.keys()
    for name, vector in expected.items():
        np.testing.assert_array_equal(matrix.vectors[name], vector, name)
    for size in (0, 3, 20, 100, (tmp_path / "imatrix.gguf").stat().st_size - 1):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes((tmp_path / "imatrix.gguf").read_bytes()[:size])
        with pytest.raises(CheckpointError, match="is not a GGUF file"):
            import_importance(cut, config)
    write_gguf(tmp_path / "other.gguf", {"x": np.ones((1, 2), np.float32)})
    with pytest.raises(CheckpointError, match="it is no importance matrix"):
        import_importance(tmp_path / "other.gguf", config)


def test_imported_from_a_checkpoint_folder(
    small: Callable[[str], Small], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gguf(
        tmp_path / "i.gguf",
        {
            "blk.0.ffn_up.weight.in_sum2": np.ones((1, 64), np.float32),
            "blk.0.ffn_up.weight.counts": np.ones((1, 1), np.float32),
        },
    )
    out = tmp_path / "i.safetensors"
    words = ["imatrix", str(small("dense").folder), "--gguf", str(tmp_path / "i.gguf"), "--out", str(out)]
    assert main(words) == 0
    assert capsys.readouterr().out == f"{out}: 1 vectors from i.gguf\n"
    assert list(ImportanceMatrix.read(out).vectors) == ["text/layers/0/mlp/up"]
