"""Words imported from a quantised checkpoint, and floats of eight and four bits encoded here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.artifact import Artifact
from engine.artifact.convert.pipeline import Request, convert
from engine.artifact.convert.recipes import find_recipe
from engine.artifact.convert.sources import CheckpointError
from engine.artifact.convert.tensors import Source, text_sources
from engine.artifact.inventory import expected_parameters
from engine.artifact.parameters import text_parameters
from engine.artifact.verify import verify
from tests.artifact.convert.checkpoints import write_checkpoint

CHANGES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_key_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
Values = dict[str, npt.NDArray[np.float32]]


def write_quantized(folder: Path, target: Path, recipe: str) -> Values:
    """A checkpoint of random words for what `recipe` imports; returns what each parameter decodes to."""
    random = np.random.default_rng(6)
    base = load_file(folder / "model.safetensors")
    out = folder.parent / "probe.ninfer"
    convert(Request(model=folder, recipe="bf16", out=out))
    with Artifact.open(out) as artifact:
        config = artifact.text_config
    sources = text_sources(config, "model.", base.__contains__)
    chosen = find_recipe(recipe)
    tensors: dict[str, torch.Tensor] = {}
    whole: dict[str, npt.NDArray[np.float32]] = {}
    values: Values = {}
    divisors: dict[str, float] = {}
    for parameter in text_parameters(config):
        source = sources[parameter.name]
        selection = chosen.select(parameter)
        if selection.method != "import_encoded":
            if not parameter.inputs:
                tensors[source.tensor] = base[source.tensor] * 2 if chosen.quantized_vectors else base[source.tensor]
            continue
        stem = source.tensor.removesuffix("weight")
        if source.tensor not in whole:
            rows, columns = source.shape
            if selection.format == "nvfp4":
                words = random.integers(0, 16, source.shape).astype(np.uint8)
                scales = random.integers(0, 0x7F, (rows, columns // 16)).astype(np.uint8)
                # Parameters that could be fused share a divisor, except the gates of layer 0.
                kind = "gate" if source.tensor == "model.layers.0.mlp.gate_proj.weight" else "other"
                divisor = divisors.setdefault(kind, 3.0 + len(divisors))
                tensors[f"{stem}weight_packed"] = torch.from_numpy(words[:, 0::2] | words[:, 1::2] << 4)
                tensors[f"{stem}weight_scale"] = torch.from_numpy(scales).view(torch.float8_e4m3fn)
                tensors[f"{stem}weight_global_scale"] = torch.tensor([divisor])
                tensors[f"{stem}input_global_scale"] = torch.tensor([float(len(whole) + 1)])
                magnitude = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)[words % 8] * np.where(words < 8, 1, -1)
                steps = np.repeat(scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32), 16, axis=1)
                whole[source.tensor] = (magnitude * steps).astype(np.float32) / np.float32(divisor)
            else:
                codes = random.integers(0, 0x7F, source.shape).astype(np.uint8)
                row_scales = random.random((rows, 1)).astype(np.float32).astype(ml_dtypes.bfloat16)
                tensors[f"{stem}weight"] = torch.from_numpy(codes).view(torch.float8_e4m3fn)
                tensors[f"{stem}weight_scale"] = torch.from_numpy(row_scales.view(np.int16)).view(torch.bfloat16)
                floats = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
                whole[source.tensor] = floats * row_scales.astype(np.float32)
        values[parameter.name] = rows_of(whole[source.tensor], source, parameter.shape[0])
    target.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target / "model.safetensors")
    return values


def rows_of(matrix: npt.NDArray[np.float32], source: Source, rows: int) -> npt.NDArray[np.float32]:
    if not source.run:
        return matrix[source.begin : source.begin + rows]
    return np.concatenate(
        [matrix[begin : begin + source.run] for begin in range(source.begin, len(matrix), source.stride)]
    )


@pytest.mark.parametrize("rows_per_chunk", [5, 512])
@pytest.mark.parametrize("recipe", ["qwen3_6_27b_nvfp4", "qwen3_8_27b_nvfp4"])
def test_imported_words_decode_to_the_source_values(recipe: str, rows_per_chunk: int, tmp_path: Path) -> None:
    folder, quantized, out = tmp_path / "model", tmp_path / "quantized", tmp_path / "out.ninfer"
    tensors = write_checkpoint(folder, add_mtp_block=False, **CHANGES)
    values = write_quantized(folder, quantized, recipe)
    report = convert(
        Request(model=folder, recipe=recipe, out=out, sources={"quantized": quantized}, rows_per_chunk=rows_per_chunk)
    )
    imported = load_file(quantized / "model.safetensors")
    with Artifact.open(out) as artifact:
        for name, expected in values.items():
            np.testing.assert_array_equal(artifact.values(name), expected, name)
        verified = verify(artifact, inventory=expected_parameters(artifact.directory, artifact.text_config))
        assert verified.good, verified.problems
        # Gate and up of layer 0 have different divisors and cannot be one object; those of layer 1 can.
        objects = [
            artifact.binding(f"text/layers/{i}/mlp/{part}").parts[0].object for i in (0, 1) for part in ("gate", "up")
        ]
        assert objects[0] != objects[1]
        assert objects[2] == objects[3]
        for part in ("gate", "down"):
            (use,) = artifact.uses(f"text/layers/1/mlp/{part}")
            divisor = artifact.read(use.auxiliaries["activation_input_divisor"])
            assert divisor[0] == imported[f"model.layers.1.mlp.{part}_proj.input_global_scale"][0].item()
            assert use.activation_policy == "AllowA4"
        norm = tensors["model.norm.weight"] * (2 if recipe == "qwen3_8_27b_nvfp4" else 1)
        np.testing.assert_array_equal(artifact.values("text/final_norm").view(np.int16), norm.view(torch.int16).numpy())
    assert {"nvfp4", "bf16", "fp32"} <= report["formats"].keys()


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


DOWN = "model.layers.1.mlp.down_proj."
SPOILT: list[tuple[Callable[[dict[str, torch.Tensor]], object], str]] = [
    (lambda t: t.pop(DOWN + "weight_packed"), "quantised checkpoint lacks tensor '.*down_proj.weight_packed'"),
    (lambda t: t.pop(DOWN + "input_global_scale"), "lacks tensor '.*input_global_scale'"),
    (lambda t: t.update({DOWN + "weight_global_scale": torch.tensor([0.0])}), "is 0.0, not finite and positive"),
    (
        lambda t: t.update({DOWN + "weight_packed": torch.zeros(128, 32, dtype=torch.uint8)}),
        r"U8 \[128, 32\]; expected",
    ),
    (lambda t: t[DOWN + "weight_scale"].view(torch.uint8).fill_(0x7F), "a block scale is negative or NaN"),
]


@pytest.mark.parametrize(("change", "message"), SPOILT)
def test_spoilt_words_are_refused(
    change: Callable[[dict[str, torch.Tensor]], object], message: str, tmp_path: Path
) -> None:
    folder, quantized = tmp_path / "model", tmp_path / "quantized"
    write_checkpoint(folder, add_mtp_block=False, **CHANGES)
    write_quantized(folder, quantized, "qwen3_6_27b_nvfp4")
    edit(quantized, change)
    with pytest.raises(CheckpointError, match=message):
        convert(
            Request(
                model=folder,
                recipe="qwen3_6_27b_nvfp4",
                out=tmp_path / "out.ninfer",
                sources={"quantized": quantized},
            )
        )
    assert not (tmp_path / "out.ninfer").exists()


def test_nano_in_four_and_eight_bit_floats(tmp_path: Path) -> None:
    folder, out = tmp_path / "model", tmp_path / "out.ninfer"
    write_checkpoint(folder, add_mtp_block=False, **CHANGES)
    contents = []
    for rows in (7, 512):
        path = out.with_suffix(f".{rows}")
        convert(Request(model=folder, recipe="nano_nvfp4", out=path, rows_per_chunk=rows, threads=2))
        with Artifact.open(path) as artifact:
            assert verify(artifact, inventory=expected_parameters(artifact.directory, artifact.text_config)).good
            contents.append({name: artifact.values(name).tobytes() for name in artifact.parameters()})
            assert artifact.formats("text/layers/0/mlp/down") == ("nvfp4",)
            assert artifact.formats("text/output_head") == ("fp8_e4m3fn_row_bf16",)
            (use,) = artifact.uses("text/layers/0/mlp/down")
            assert (use.activation_policy, use.auxiliaries) == ("A16Only", {})
    assert contents[0] == contents[1]
