"""Checkpoints written by `transformers`, converted and read back parameter by parameter."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.artifact import Artifact
from engine.artifact.convert.pipeline import Request, convert
from engine.artifact.convert.planner import component_registry
from engine.artifact.convert.report import report_path
from engine.artifact.convert.sources import CheckpointError
from engine.artifact.grouped import quantize_absmax
from engine.artifact.parameters import Parameter
from engine.exits import ArtifactError, ConfigurationError
from tests.artifact.convert.checkpoints import HEAD, HEADS, HIDDEN, shard, write_checkpoint

Tensors: TypeAlias = dict[str, torch.Tensor]
ALL = {"dense": ("text", "mtp"), "moe": ("text", "mtp"), "vision": ("text", "mtp", "vision")}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Tensors]]:
    """Folder and tensors of a checkpoint by kind; written once."""
    made: dict[str, tuple[Path, Tensors]] = {}

    def get(kind: str) -> tuple[Path, Tensors]:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            made[kind] = folder, write_checkpoint(folder, kind.removesuffix("-tied"), tied=kind.endswith("-tied"))
        return made[kind]

    return get


@pytest.fixture
def dense(checkpoints: Callable[[str], tuple[Path, Tensors]], tmp_path: Path) -> Path:
    """A dense checkpoint of the test's own, to be spoilt."""
    return shutil.copytree(checkpoints("dense")[0], tmp_path / "own")


def expected(name: str, tensors: Tensors, prefix: str) -> torch.Tensor:
    """The logical parameter `name` made from the checkpoint by hand, in the checkpoint's type."""
    top = {
        "text/token_embedding": prefix + "embed_tokens.weight",
        "text/output_head": "lm_head.weight",
        "text/final_norm": prefix + "norm.weight",
        "mtp/input_projection": "mtp.fc.weight",
        "mtp/embedding_norm": "mtp.pre_fc_norm_embedding.weight",
        "mtp/hidden_norm": "mtp.pre_fc_norm_hidden.weight",
        "mtp/final_norm": "mtp.norm.weight",
        "vision/patch_embedding_bias": "model.visual.patch_embed.proj.bias",
        "vision/position_embedding": "model.visual.pos_embed.weight",
    }
    if name == "vision/patch_embedding":
        return tensors["model.visual.patch_embed.proj.weight"].reshape(32, 3 * 2 * 16 * 16)
    if name in top:
        return tensors.get(top[name], tensors[prefix + "embed_tokens.weight"])
    component, rest = name.split("/", 1)
    if component == "vision":
        return vision(rest, tensors)
    _, layer, rest = rest.split("/", 2)
    source = f"mtp.layers.{layer}." if component == "mtp" else f"{prefix}layers.{layer}."
    return block(rest, source, tensors)


def block(rest: str, source: str, tensors: Tensors) -> torch.Tensor:
    query_gate = tensors.get(source + "self_attn.q_proj.weight", torch.empty(0)).reshape(-1, 2, HEAD, HIDDEN)
    special: dict[str, Callable[[], torch.Tensor]] = {
        "input_norm": lambda: tensors[source + "input_layernorm.weight"],
        "post_attention_norm": lambda: tensors[source + "post_attention_layernorm.weight"],
        "attention/query": lambda: query_gate[:, 0].reshape(HEADS * HEAD, HIDDEN),
        "attention/gate": lambda: query_gate[:, 1].reshape(HEADS * HEAD, HIDDEN),
        "attention/query_norm": lambda: tensors[source + "self_attn.q_norm.weight"],
        "attention/key_norm": lambda: tensors[source + "self_attn.k_norm.weight"],
        "gdn/a_log": lambda: tensors[source + "linear_attn.A_log"].float(),
        "gdn/dt_bias": lambda: tensors[source + "linear_attn.dt_bias"].float(),
        "gdn/convolution": lambda: tensors[source + "linear_attn.conv1d.weight"].permute(2, 0, 1)[:, :, 0],
        "gdn/norm": lambda: tensors[source + "linear_attn.norm.weight"],
        "gdn/query": lambda: tensors[source + "linear_attn.in_proj_qkv.weight"][:32],
        "gdn/key": lambda: tensors[source + "linear_attn.in_proj_qkv.weight"][32:64],
        "gdn/value": lambda: tensors[source + "linear_attn.in_proj_qkv.weight"][64:],
        "gdn/a_projection": lambda: tensors[source + "linear_attn.in_proj_a.weight"],
        "gdn/b_projection": lambda: tensors[source + "linear_attn.in_proj_b.weight"],
        "gdn/z": lambda: tensors[source + "linear_attn.in_proj_z.weight"],
        "gdn/output": lambda: tensors[source + "linear_attn.out_proj.weight"],
        "moe/router": lambda: tensors[source + "mlp.gate.weight"],
        "moe/shared_score": lambda: tensors[source + "mlp.shared_expert_gate.weight"],
    }
    if rest in special:
        return special[rest]()
    kind, *_, part = rest.split("/")
    if kind == "attention":
        return tensors[f"{source}self_attn.{part[0]}_proj.weight"]
    if kind == "mlp":
        return tensors[f"{source}mlp.{part}_proj.weight"]
    if "/shared/" in rest:
        return tensors[f"{source}mlp.shared_expert.{part}_proj.weight"]
    expert = int(rest.split("/")[2])
    alone = f"{source}mlp.experts.{expert}.{part}_proj.weight"
    if alone in tensors:
        return tensors[alone]
    if part == "down":
        return tensors[source + "mlp.experts.down_proj"][expert]
    return tensors[source + "mlp.experts.gate_up_proj"][expert].chunk(2)[part == "up"]


def vision(rest: str, tensors: Tensors) -> torch.Tensor:
    source, bias = "model.visual.", rest.endswith("_bias")
    word = "bias" if bias else "weight"
    rest = rest.removesuffix("_bias").removesuffix("_weight")
    if rest.startswith("merger/"):
        name = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}[rest.split("/")[1]]
        return tensors[f"{source}merger.{name}.{word}"]
    _, layer, rest = rest.split("/", 2)
    source += f"blocks.{layer}."
    if rest in ("norm1", "norm2"):
        return tensors[f"{source}{rest}.{word}"]
    kind, part = rest.split("/")
    if kind == "mlp":
        return tensors[f"{source}mlp.linear_{part}.{word}"]
    if part == "output":
        return tensors[f"{source}attn.proj.{word}"]
    return tensors[f"{source}attn.qkv.{word}"].chunk(3)[("query", "key", "value").index(part)]


def words(values: Any) -> np.ndarray[Any, Any]:
    """The bits of an array or tensor."""
    if isinstance(values, torch.Tensor):
        values = values.contiguous()
        return (values.view(torch.int16) if values.element_size() == 2 else values.view(torch.int32)).numpy()
    return np.asarray(values.view({2: np.int16, 4: np.int32}[values.itemsize]))


def registered(artifact: Artifact) -> list[Parameter]:
    records = {name: record.config for name, record in artifact.directory.components.items()}
    return list(component_registry(records))


@pytest.mark.parametrize("kind", ["dense", "dense-tied", "moe", "vision"])
def test_bf16_keeps_every_bit(kind: str, checkpoints: Callable[[str], tuple[Path, Tensors]], tmp_path: Path) -> None:
    folder, tensors = checkpoints(kind)
    prefix = "model.language_model." if kind == "vision" else "model."
    out = tmp_path / "model.ninfer"
    components = ALL[kind.removesuffix("-tied")]
    report = convert(
        Request(model=folder, recipe="bf16", out=out, components=components, name="tiny", rows_per_chunk=37)
    )
    with Artifact.open(out) as artifact:
        assert artifact.name == "tiny"
        assert tuple(artifact.directory.components) == components
        parameters = registered(artifact)
        assert artifact.parameters() == [parameter.name for parameter in parameters]
        for parameter in parameters:
            source = expected(parameter.name, tensors, prefix)
            assert tuple(source.shape) == parameter.shape, parameter.name
            values = artifact.read(artifact.binding(parameter.name)).reshape(parameter.shape)
            np.testing.assert_array_equal(words(values), words(source), parameter.name)
            assert [use.input for use in artifact.uses(parameter.name)] == list(parameter.inputs)
        for role in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
            assert artifact.resource("text", role) == (folder / role).read_bytes()
        assert artifact.binding("text/output_head").parts[0].object == (
            artifact.binding("text/token_embedding").parts[0].object
            if kind.endswith("-tied")
            else "weight/" + artifact.binding("text/output_head").parts[0].object.removeprefix("weight/")
        )
    assert report["token_count"] == 259
    assert json.loads(report_path(out).read_text()) == report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.ninfer", "model.ninfer.conversion.json"]
