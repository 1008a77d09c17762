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
from engine.artifact.convert.importance import ImportanceMatrix
from engine.artifact.convert.pipeline import Request, convert
from engine.artifact.convert.report import report_path
from engine.artifact.convert.sources import CheckpointError
from engine.artifact.grouped import encode_grouped, quantize_absmax
from engine.artifact.parameters import Parameter, component_registry
from engine.artifact.search import encode_search
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
        "gdn/a_log": lambda: tensors[source + "linear_attn.A_log"].to(torch.float32),
        "gdn/dt_bias": lambda: tensors[source + "linear_attn.dt_bias"].to(torch.float32),
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
        values = values.view(torch.int16 if values.element_size() == 2 else torch.int32).numpy()
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
        head, embedding = (artifact.binding(f"text/{name}") for name in ("output_head", "token_embedding"))
        assert (head.parts[0].object == embedding.parts[0].object) == kind.endswith("-tied")
    assert report["token_count"] == 259
    assert json.loads(report_path(out).read_text()) == report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.ninfer", "model.ninfer.conversion.json"]


def make(folder: Path, out: Path, recipe: str = "bf16", **changes: Any) -> dict[str, Any]:
    return convert(Request(model=folder, recipe=recipe, out=out, **changes))


@pytest.mark.parametrize("rows_per_chunk", [1, 7, 512])
def test_grouped_words_do_not_depend_on_chunks(
    rows_per_chunk: int, checkpoints: Callable[[str], tuple[Path, Tensors]], tmp_path: Path
) -> None:
    folder, tensors = checkpoints("dense")
    out = tmp_path / "model.ninfer"
    report = make(folder, out, "nano", components=ALL["dense"], rows_per_chunk=rows_per_chunk)
    found = set()
    with Artifact.open(out) as artifact:
        for parameter in registered(artifact):
            source = expected(parameter.name, tensors, "model.")
            (part,) = artifact.encoded(parameter.name)
            found.add(part.tensor.format.name)
            if part.tensor.format.name in ("bf16", "fp32"):
                values = artifact.read(artifact.binding(parameter.name)).reshape(parameter.shape)
                np.testing.assert_array_equal(words(values), words(source), parameter.name)
                continue
            codes, scales = quantize_absmax(part.tensor.format.name, source.float().numpy())
            planes = encode_grouped(part.tensor.format.name, source.float().numpy())
            stored = part.tensor.grouped_rows(*part.rows)
            np.testing.assert_array_equal(stored.base, planes.base, parameter.name)
            np.testing.assert_array_equal(stored.high, planes.high, parameter.name)
            np.testing.assert_array_equal(stored.scales.view(np.uint16), scales.view(np.uint16), parameter.name)
            group = codes.shape[1] // scales.shape[1]
            values = codes.astype(np.float32) * np.repeat(scales.astype(np.float32), group, axis=1)
            np.testing.assert_array_equal(artifact.values(parameter.name), values[:, : parameter.shape[1]])
    assert found == set(report["formats"])
    assert {"q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "bf16", "fp32"} == found


@pytest.mark.parametrize(("rows_per_chunk", "threads"), [(5, 1), (64, 3)])
def test_searched_words_are_weighted_with_the_importance_matrix(
    rows_per_chunk: int, threads: int, checkpoints: Callable[[str], tuple[Path, Tensors]], tmp_path: Path
) -> None:
    folder, tensors = checkpoints("dense")
    random = np.random.default_rng(8)
    vectors = {
        name: random.random(size).astype(np.float32)
        for name, size in (
            ("text/layers/0/gdn/query", HIDDEN),
            ("text/layers/0/gdn/key", HIDDEN),
            ("text/layers/3/attention/output", HEADS * HEAD),
        )
    }
    matrix = tmp_path / "made.safetensors"
    ImportanceMatrix(vectors, "some text").write(matrix)
    out = tmp_path / "model.ninfer"
    effort: dict[str, Any] = {"rows_per_chunk": rows_per_chunk, "threads": threads}
    report = make(folder, out, "qwen3_8_27b", sources={"imatrix": matrix}, **effort)
    mean = (vectors["text/layers/0/gdn/query"] + vectors["text/layers/0/gdn/key"]) / np.float32(2)
    weighted = {
        "text/layers/0/gdn/query": mean,
        "text/layers/0/gdn/key": mean,
        "text/layers/3/attention/output": vectors["text/layers/3/attention/output"],
    }
    searched = [entry for entry in report["methods"] if entry["method"] == "grouped_search"]
    assert {name for entry in searched for name in entry["parameters"]} >= weighted.keys()
    assert sum(entry["method_parameters"]["imatrix"] == "some text" for entry in searched) == 2
    with Artifact.open(out) as artifact:
        assert artifact.directory.provenance["sources"]["imatrix"] == {"path": str(matrix)}
        for entry in searched:
            for name in entry["parameters"]:
                source = expected(name, tensors, "model.").float().numpy()
                (part,) = artifact.encoded(name)
                planes = encode_search(part.tensor.format.name, source, weighted.get(name), negative_scales=True)
                stored = part.tensor.grouped_rows(*part.rows)
                np.testing.assert_array_equal(stored.base, planes.base, name)
                np.testing.assert_array_equal(stored.scales.view(np.uint16), planes.scales.view(np.uint16), name)


def test_an_importance_matrix_of_another_model_is_refused(dense: Path, tmp_path: Path) -> None:
    for name, size, message in (
        ("text/layers/9/mlp/up", HIDDEN, r"covers 'text/layers/9/mlp/up', which this model does not have"),
        ("text/layers/0/mlp/up", 5, r"text/layers/0/mlp/up: the importance is float32 \[5\]"),
    ):
        matrix = tmp_path / f"{size}.safetensors"
        ImportanceMatrix({name: np.ones(size, np.float32)}, "x").write(matrix)
        with pytest.raises(CheckpointError, match=message):
            make(dense, tmp_path / "model.ninfer", "nano_search", sources={"imatrix": matrix})


def test_shards_equal_a_single_file(checkpoints: Callable[[str], tuple[Path, Tensors]], tmp_path: Path) -> None:
    folder, _ = checkpoints("moe")
    own = shutil.copytree(folder, tmp_path / "one" / "model")
    (tmp_path / "many").mkdir()
    shard(own, tmp_path / "many" / "model", 3)
    contents = []
    for source in ("one", "many"):
        make(tmp_path / source / "model", tmp_path / f"{source}.ninfer", "qwen3_6_35b_a3b", components=ALL["moe"])
        with Artifact.open(tmp_path / f"{source}.ninfer") as artifact:
            contents.append(
                {name: words(artifact.read(artifact.binding(name))).tobytes() for name in artifact.parameters()}
            )
    assert contents[0] == contents[1]


def test_stacked_and_single_experts_are_the_same(
    checkpoints: Callable[[str], tuple[Path, Tensors]], tmp_path: Path
) -> None:
    """`transformers` 5 writes each expert for itself; published checkpoints stack them."""
    folder, tensors = checkpoints("moe")
    stacked = shutil.copytree(folder, tmp_path / "stacked")
    kept = {name: tensor for name, tensor in tensors.items() if ".mlp.experts." not in name or name.startswith("mtp.")}
    for layer in range(4):
        source = f"model.layers.{layer}.mlp.experts."
        parts = {
            part: torch.stack([tensors[f"{source}{expert}.{part}_proj.weight"] for expert in range(4)])
            for part in ("gate", "up", "down")
        }
        kept[source + "gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], dim=1)
        kept[source + "down_proj"] = parts["down"]
    save_file(kept, stacked / "model.safetensors")
    make(folder, tmp_path / "a.ninfer")
    make(stacked, tmp_path / "b.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as a, Artifact.open(tmp_path / "b.ninfer") as b:
        for name in a.parameters():
            np.testing.assert_array_equal(words(a.values(name)), words(b.values(name)), name)


def test_float32_checkpoints_are_rounded(tmp_path: Path) -> None:
    tensors = write_checkpoint(tmp_path / "model", dtype=torch.float32)
    make(tmp_path / "model", tmp_path / "a.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        norm = tensors["model.norm.weight"].to(torch.bfloat16)
        np.testing.assert_array_equal(words(artifact.values("text/final_norm")), words(norm))
        a_log = tensors["model.layers.0.linear_attn.A_log"]
        np.testing.assert_array_equal(words(artifact.values("text/layers/0/gdn/a_log")), words(a_log))


def test_file_sets(checkpoints: Callable[[str], tuple[Path, Tensors]], tmp_path: Path) -> None:
    folder, tensors = checkpoints("dense")
    report = make(folder, tmp_path / "a.ninfer", max_file_bytes=131072)
    assert len(report["files"]) > 2
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        head = artifact.values("text/output_head")
    np.testing.assert_array_equal(words(head), words(tensors["lm_head.weight"]))


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace tensors, or drop those given as None; `__` stands for a dot."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, path)


def remove(folder: Path, name: str) -> None:
    (folder / name).unlink()


SPOILT: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: edit_tensors(f, model__norm__weight=None), r"lacks tensor 'model\.norm\.weight'"),
    (lambda f: edit_tensors(f, mtp__fc__weight=None), r"lacks tensor 'mtp\.fc\.weight'"),
    (lambda f: edit_tensors(f, lm_head__weight=torch.zeros(64, 320)), r"shape \[64, 320\].* asks for \[320, 64\]"),
    (lambda f: edit_tensors(f, model__norm__weight=torch.zeros(64, dtype=torch.int32)), "is of type I32; only unquant"),
    (lambda f: edit_tensors(f, model__extra__weight=torch.zeros(1)), r"what to do with tensor 'model\.extra\.weight'"),
    (
        lambda f: edit_tensors(f, lm_head__weight=torch.full((320, 64), torch.inf)),
        "text/output_head, rows 0 to .* finite",
    ),
    (lambda f: edit_json(f / "config.json", hidden_act="gelu"), "hidden_act is 'gelu'"),
    (lambda f: edit_json(f / "config.json", num_hidden_layers=5), "4 layer_types for 5 layers"),
    (lambda f: edit_json(f / "config.json", vocab_size=200), "defines 259 ids; the embedding has 200 rows"),
    (lambda f: edit_json(f / "tokenizer.json", added_tokens=[{"id": 999, "content": "<x>"}]), "but id 256 is absent"),
    (lambda f: (f / "tokenizer.json").write_text("{"), r"tokenizer\.json is not JSON"),
    (lambda f: (f / "chat_template.jinja").write_bytes(b"\xff"), r"chat_template\.jinja is not UTF-8"),
    (lambda f: (f / "chat_template.jinja").write_bytes(b""), r"chat_template\.jinja is empty"),
    (lambda f: remove(f, "generation_config.json"), r"is missing; .* --resource generation_config\.json=PATH"),
    (lambda f: remove(f, "config.json"), r"config\.json is missing"),
    (lambda f: remove(f, "model.safetensors"), r"neither model\.safetensors"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILT)
def test_spoilt_checkpoints(spoil: Callable[[Path], object], message: str, dense: Path, tmp_path: Path) -> None:
    spoil(dense)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArtifactError, match=message):
        make(dense, tmp_path / "model.ninfer", "nano", components=("text", "mtp"))
    assert sorted(tmp_path.iterdir()) == before


def test_refused_requests(dense: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.ninfer"
    for recipe, message in (
        ("nonsense", "unknown recipe 'nonsense'; known: bf16"),
        ("qwen3_8_27b", "recipe 'qwen3_8_27b' needs --source imatrix=PATH"),
        ("qwen3_8_27b_nvfp4", "needs --source quantized=PATH"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            make(dense, out, recipe)
    with pytest.raises(ConfigurationError, match="component 'dflash2' cannot be converted"):
        make(dense, out, components=("text", "dflash2"))
    with pytest.raises(CheckpointError, match="no vision_config"):
        make(dense, out, components=("text", "vision"))
    with pytest.raises(ConfigurationError, match=r"resource 'preprocessor_config\.json' has no place here"):
        make(dense, out, resources={"preprocessor_config.json": dense / "config.json"})
    with pytest.raises(ConfigurationError, match="is not a folder"):
        make(dense, tmp_path / "nowhere" / "model.ninfer")
    with pytest.raises(ConfigurationError, match="reads no source 'imatrix'; it reads: none"):
        make(dense, out, sources={"imatrix": dense / "config.json"})
    with pytest.raises(CheckpointError, match=r"config\.json is not an importance matrix"):
        make(dense, out, "qwen3_8_27b", sources={"imatrix": dense / "config.json"})
    with pytest.raises(ConfigurationError, match="rows per chunk is 0"):
        make(dense, out, rows_per_chunk=0)
    assert not out.exists()


@pytest.mark.parametrize("suffix", ["", ".conversion.json"])
def test_existing_output_is_kept(suffix: str, dense: Path, tmp_path: Path) -> None:
    existing = tmp_path / f"model.ninfer{suffix}"
    existing.write_text("precious")
    with pytest.raises(ArtifactError, match="exists already and is not overwritten"):
        make(dense, tmp_path / "model.ninfer")
    assert existing.read_text() == "precious"


def test_resource_from_elsewhere(dense: Path, tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("mine")
    remove(dense, "chat_template.jinja")
    make(dense, tmp_path / "a.ninfer", resources={"chat_template.jinja": template})
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert artifact.resource("text", "chat_template.jinja") == b"mine"


def test_vision_processor_must_agree(checkpoints: Callable[[str], tuple[Path, Tensors]], tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints("vision")[0], tmp_path / "own")
    edit_json(folder / "video_preprocessor_config.json", temporal_patch_size=4)
    with pytest.raises(CheckpointError, match=r"video_preprocessor_config\.json: temporal_patch_size is 4; .* has 2"):
        make(folder, tmp_path / "a.ninfer", components=("text", "vision"))
