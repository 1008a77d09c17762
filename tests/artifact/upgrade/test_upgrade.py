"""Version 2 files made version 3: every weight word in its place, and nothing half done (spec/artifact.md §1.6)."""

import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.artifact import Artifact
from engine.artifact.inventory import expected_parameters
from engine.artifact.upgrade.run import Outcome, upgrade
from engine.artifact.upgrade.shapes import OFFICIAL, Shape
from engine.artifact.verify import verify
from engine.cli.artifact import main
from engine.exits import ArtifactError, ConfigurationError, ExitCode
from tests.artifact.convert import published
from tests.artifact.upgrade.old import Q8, ROLES, Sizes, objects, old_directory, site, specs, write_head, write_old

ROOT = Path(__file__).resolve().parents[3]

SMALL = Sizes(
    vocabulary=128, hidden=128, layers=8, query=128, key=64, head=32, linear_key=64, linear_value=128, linear_heads=4,
    linear_head=32, inner=128, proposal=32, vision_layers=1, vision=64, vision_inner=64, patch=96, positions=16,
)  # fmt: skip
SMALL_DRAFT: dict[str, Any] = {
    "draft_layers": 2, "draft_taps": 2, "draft_query": 64, "draft_key": 32, "draft_head": 32, "draft_inner": 96,
    "rank": 16,
}  # fmt: skip
FAMILIES = {
    "groupwise": SMALL,
    "dflash2": replace(SMALL, draft="dflash2", vocabulary_format=(Q8, Q8), **SMALL_DRAFT),
    "nvfp4": replace(SMALL, nvfp4="qwen3.6-27b", key=128, linear_key=128),
    "fp8": replace(SMALL, nvfp4="qwen3.8-27b", layers=12),
    "moe": replace(SMALL, inner=0, experts=4, expert_inner=32, draft="dflash", q6_down=(2,), **SMALL_DRAFT),
}


def small_configs(s: Sizes) -> dict[str, dict[str, Any]]:
    """Component configs of a small model, by the records of the published ones."""
    moe = s.experts > 0
    text = published.text_config(moe=moe) | {
        "hidden_size": s.hidden, "vocab_size": s.vocabulary, "num_hidden_layers": s.layers,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(s.layers)],
        "num_attention_heads": s.query // s.head, "num_key_value_heads": s.key // s.head, "head_dim": s.head,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]},
        "linear_num_key_heads": s.linear_key // s.linear_head, "linear_key_head_dim": s.linear_head,
        "linear_num_value_heads": s.linear_heads, "linear_value_head_dim": s.linear_head,
    }  # fmt: skip
    if moe:
        text |= {
            "num_experts": s.experts, "num_experts_per_tok": 2, "moe_intermediate_size": s.expert_inner,
            "shared_expert_intermediate_size": s.expert_inner,
        }  # fmt: skip
    else:
        text["intermediate_size"] = s.inner
    vision = published.vision_config(moe=moe) | {
        "depth": s.vision_layers, "hidden_size": s.vision, "intermediate_size": s.vision_inner, "patch_size": 4,
        "num_heads": 2, "num_position_embeddings": s.positions,
    }  # fmt: skip
    records = {"text": text, "mtp": {"architectures": ["Qwen3_5MoeMTP" if moe else "Qwen3_5MTP"]}, "vision": vision}
    if s.draft:
        record = published.draft_config(s.draft)
        taps = record["dflash_config"] | {"target_layer_ids": [1, 3], "mask_token_id": 7}
        if s.draft == "dflash2":
            taps["selector_rank"] = s.rank
        records[s.draft] = record | {
            "num_hidden_layers": s.draft_layers, "layer_types": ["sliding_attention"] * s.draft_layers,
            "intermediate_size": s.draft_inner, "num_attention_heads": s.draft_query // s.draft_head,
            "num_key_value_heads": s.draft_key // s.draft_head, "head_dim": s.draft_head, "dflash_config": taps,
        }  # fmt: skip
    return records


def small_shape(family: str) -> Shape:
    s = FAMILIES[family]
    held = sum(len(item.holds) + len(item.extra) for item in objects(s))
    count = len(specs(s, dict.fromkeys(ROLES, 1)))
    return Shape("small", family, count, held, small_configs(s), s.proposal)


def payload_of(path: Path, header_bytes: int) -> bytes:
    data = path.read_bytes()
    start = -(-(header_bytes + struct.unpack("<Q", data[8:16])[0]) // 4096) * 4096
    return data[start:]


def make(folder: Path, family: str, template: bytes | None = None, **options: Any) -> tuple[Path, Path, Outcome, Any]:
    """A small version 2 file, its upgrade, and what each object decodes to."""
    source, out = folder / f"{family}.v2.ninfer", folder / f"{family}.ninfer"
    values = write_old(source, "small", family, FAMILIES[family], np.random.default_rng(11))
    outcome = upgrade(source, out, template, shapes=[small_shape(family)], **options)
    return source, out, outcome, values


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_keeps_its_words(family: str, tmp_path: Path) -> None:
    source, out, outcome, values = make(tmp_path, family, b"{{ messages }}")
    s = FAMILIES[family]
    seen: set[str] = set()
    with Artifact.open(out) as artifact:
        expected = {
            parameter.name: parameter for parameter in expected_parameters(artifact.directory, artifact.text_config)
        }
        for item in objects(s):
            whole: npt.NDArray[np.generic] = values[item.name].reshape(item.shape)
            begin = 0
            slices = []
            for name, rows in item.holds:
                slices.append((name, begin, begin + rows))
                begin += rows
            for name, first, last in (*slices, *item.extra):
                ours = artifact.read(artifact.binding(name)).reshape(whole[first:last].shape)
                np.testing.assert_array_equal(ours, whole[first:last], name)
                assert ours.size == np.prod(expected[name].shape)
                assert artifact.formats(name) == (item.format,)
                uses = artifact.uses(name)
                assert [use.input for use in uses] == list(expected[name].inputs)
                policy = {"nvfp4": "AllowA4", "fp8_e4m3fn_row_bf16": "AllowA8"}.get(item.format, "A16Only")
                for use in uses:
                    assert use.activation_policy == policy
                    divisor = use.auxiliaries.get("activation_input_divisor")
                    assert (divisor is not None) == (item.format == "nvfp4")
                    if divisor is not None:
                        assert artifact.read(divisor)[0] == values[site(item.name)]
                seen.add(name)
        assert seen == set(artifact.parameters()) == set(expected)
        assert artifact.name == "small"
        assert artifact.directory.provenance == {
            "upgraded_from": {"version": 2, "model_id": "small", "weights_id": family}
        }
        for role in ROLES[:4]:
            kept = b"{{ messages }}" if role == "chat_template.jinja" else values[f"frontend/{role}"]
            assert artifact.resource("text", role) == kept
        for role in ROLES[4:]:
            assert artifact.resource("vision", role) == values[f"frontend/{role}"]
        report = verify(artifact, inventory=expected.values())
        # Resources and token ids of these files are random.
        assert not [p for p in report.problems if not p.startswith(("resource ", "tokenizer", "proposal/token_ids"))]
        assert outcome.artifact_id == artifact.artifact_id.hex()
    old, new = payload_of(source, 16), payload_of(out, 32)
    assert new[: len(old)] == old
    offset = -(-len(old) // 256) * 256
    assert new[len(old) :] == bytes(offset - len(old)) + b"{{ messages }}"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, out.name])


def test_without_a_template_the_old_one_stays(tmp_path: Path) -> None:
    source, out, _, values = make(tmp_path, "groupwise")
    with Artifact.open(out) as artifact:
        assert artifact.resource("text", "chat_template.jinja") == values["frontend/chat_template.jinja"]
    assert payload_of(out, 32) == payload_of(source, 16)


def test_file_sets(tmp_path: Path) -> None:
    _, out, outcome, values = make(tmp_path, "groupwise", b"x", limit=200_000)
    assert outcome.files > 2
    with Artifact.open(out) as artifact:
        np.testing.assert_array_equal(artifact.values("text/token_embedding"), values["text/token_embedding"])
        assert artifact.resource("text", "chat_template.jinja") == b"x"


def sizes(model_id: str, weights_id: str, count: int) -> Sizes:
    """Sizes of the official models (spec/artifact.md §4.1)."""
    if model_id == "qwen3.6-35b-a3b":
        return Sizes(
            vocabulary=248320, hidden=2048, layers=40, query=4096, key=512, head=256, linear_key=2048,
            linear_value=4096, linear_heads=32, linear_head=128, experts=256, expert_inner=512, draft="dflash",
            draft_layers=6, draft_taps=8, draft_inner=6144, vocabulary_format=(Q8, "q6_g64_fp16"), q6_down=(34, 38, 39),
        )  # fmt: skip
    eight = model_id == "qwen3.8-27b"
    nvfp4 = model_id if weights_id == "nvfp4" else ""
    vocabulary = "fp8_e4m3fn_row_bf16" if eight and nvfp4 else Q8 if eight or nvfp4 else "q6_g64_fp16"
    draft: dict[str, Any] = {}
    if count == 1190:
        draft = {"draft": "dflash2", "draft_layers": 5, "draft_taps": 5, "draft_inner": 17408}
    return Sizes(
        vocabulary=248320, hidden=5120, layers=64, query=6144, key=1024, head=256, linear_key=2048, linear_value=6144,
        linear_heads=48, linear_head=128, inner=17408, nvfp4=nvfp4, vocabulary_format=(vocabulary, vocabulary), **draft,
    )  # fmt: skip


# Payload bytes that spec/artifact.md §1.6 states, with the resource totals of §4.10 and the templates' sizes.
RESOURCES = {"qwen3.6": (12_833_441, 7_764, 8_539), "qwen3.8": (12_837_177, 8_952, 9_712)}
PAYLOADS = {
    ("qwen3.6-27b", "groupwise-int", 1124): (17_495_189_760, 17_495_198_299),
    ("qwen3.6-27b", "nvfp4", 1307): (18_323_855_104, 18_323_863_643),
    ("qwen3.8-27b", "groupwise-int", 1124): (18_210_355_200, 18_210_364_912),
    ("qwen3.6-35b-a3b", "groupwise-int", 940): (22_783_094_528, 22_783_103_067),
}


@pytest.mark.parametrize("shape", OFFICIAL, ids=lambda shape: f"{shape.model_id}-{shape.weights_id}-{shape.objects}")
def test_official_shapes(shape: Shape, tmp_path: Path) -> None:
    """The real sizes, in files that are holes but for a few words; no weight takes room on the disk."""
    if shutil.disk_usage(tmp_path).free < 24_000_000_000:
        pytest.skip("an upgrade wants room for the whole file, whether it is sparse or not")
    total, template_bytes, maintained = RESOURCES[shape.model_id[:7]]
    resources = dict.fromkeys(ROLES, 100) | {"chat_template.jinja": template_bytes}
    resources["tokenizer.json"] = total - sum(resources.values()) + 100
    listed = specs(sizes(shape.model_id, shape.weights_id, shape.objects), resources)
    directory, payload = old_directory(shape.model_id, shape.weights_id, listed)
    key = (shape.model_id, shape.weights_id, shape.objects)
    assert len(listed) == shape.objects
    source, out = tmp_path / "old.ninfer", tmp_path / "new.ninfer"
    start = write_head(source, directory)
    places = {record["name"]: record for record in directory["objects"]}
    random = np.random.default_rng(2)
    marks: dict[str, bytes] = {}
    with source.open("r+b") as file:
        file.truncate(start + -(-payload // 256) * 256)
        for name, record in places.items():
            if name.endswith("/input_scale_divisor"):
                file.seek(start + record["offset"])
                file.write(np.float32(2).tobytes())
        for name in random.choice(sorted(places), 20, replace=False):
            marks[name] = random.bytes(min(500, places[name]["bytes"])) if not name.endswith("divisor") else b""
            file.seek(start + places[name]["offset"])
            file.write(marks[name])
    if source.stat().st_blocks * 512 > 1 << 30:
        pytest.skip("this filesystem has no sparse files")
    if key in PAYLOADS:
        # Official payloads end at a multiple of 256.
        assert -(-payload // 256) * 256 == PAYLOADS[key][0]
    outcome = upgrade(source, out, b"t" * maintained)
    if key in PAYLOADS:
        assert outcome.payload_bytes == PAYLOADS[key][1]
    assert out.stat().st_blocks * 512 < 1 << 28
    with Artifact.open(out) as artifact:
        assert len(artifact.directory.objects) == shape.objects
        assert len(artifact.parameters()) == shape.bindings == outcome.parameters
        assert set(artifact.parameters()) == {
            p.name for p in expected_parameters(artifact.directory, artifact.text_config)
        }
        configs = {name: component.config for name, component in artifact.directory.components.items()}
        assert configs == published.configs(
            moe="35b" in shape.model_id, draft=next((d for d in configs if d[:6] == "dflash"), None)
        )
        assert artifact.directory.payload_bytes == outcome.payload_bytes
        for name, mark in marks.items():
            offset = places[name]["offset"]
            if name != "frontend/chat_template.jinja":
                assert artifact.directory.objects[name].offset == offset
            assert artifact.payload.read(offset, offset + len(mark)).tobytes() == mark
        assert artifact.resource("text", "chat_template.jinja") == b"t" * maintained


def spoilt(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of the small file `old.ninfer` in `folder` with another directory."""
    data = (folder / "old.ninfer").read_bytes()
    size = struct.unpack("<Q", data[8:16])[0]
    directory = json.loads(data[16 : 16 + size])
    change(directory)
    path = folder / "spoilt.ninfer"
    write_head(path, directory)
    with path.open("ab") as file:
        file.write(data[-(-(16 + size) // 4096) * 4096 :])
    return path


def record(directory: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(item for item in directory["objects"] if item["name"] == name)
    return found


SPOILT: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda d: d["identity"].update(model_id="qwen9"), r"'qwen9' 'nvfp4' with \d+ objects, which is not an official"),
    (lambda d: d["objects"].pop(), r"with \d+ objects, which is not an official artifact"),
    (lambda d: record(d, "text/final_norm").update(name="text/last_norm"), "'text/last_norm' is not one that this"),
    (lambda d: record(d, "text/final_norm").update(name="mtp/final_norm"), "'mtp/final_norm' appears twice"),
    (lambda d: record(d, "text/final_norm").update(shape=[64], bytes=128), r"shape \[64\]; this model has \[128\]"),
    (lambda d: record(d, "text/final_norm").update(bytes=250), "has 250 bytes; BF16 .* takes exactly 256"),
    (lambda d: record(d, "text/final_norm").update(format="Q9"), "unknown format 'Q9'; known: BF16"),
    (lambda d: record(d, "text/final_norm").update(format="bf16"), "unknown format 'bf16'"),
    (lambda d: record(d, "text/final_norm").update(layout="row-scale-v1"), "does not hold format 'bf16'"),
    (lambda d: record(d, "text/layers/0/gdn/a_log").update(offset=10**12), "beyond the payload|before the end"),
    (lambda d: record(d, "frontend/tokenizer.json").update(name="frontend/merges.txt"), "missing: .*tokenizer.json"),
    (lambda d: record(d, "text/layers/0/gdn/a_log").update(format="I32"), "is int32; .*gdn/a_log' must be fp32"),
    (lambda d: record(d, "text/layers/7/attention/output_projection/input_scale_divisor").update(
        name="text/layers/7/attention/other/input_scale_divisor"), "divides the input of nothing"),
    (lambda d: record(d, "text/layers/7/attention/output_projection/input_scale_divisor").update(
        name="text/layers/3/attention/output_projection/input_scale_divisor"), "lacks an activation|has an activation"),
    (lambda d: d.update(extra=1), "version 2 has exactly"),
    (lambda d: d["objects"].reverse(), "before the end of the one before it"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), SPOILT)
def test_other_files_are_refused(change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path) -> None:
    write_old(tmp_path / "old.ninfer", "small", "nvfp4", FAMILIES["nvfp4"], np.random.default_rng(1))
    source = spoilt(tmp_path, change)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArtifactError, match=message):
        upgrade(source, tmp_path / "out.ninfer", shapes=[small_shape("nvfp4")])
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_a_divisor_that_cannot_divide_is_refused(value: float, tmp_path: Path) -> None:
    source = tmp_path / "old.ninfer"
    write_old(source, "small", "nvfp4", FAMILIES["nvfp4"], np.random.default_rng(1))
    data = bytearray(source.read_bytes())
    size = struct.unpack("<Q", data[8:16])[0]
    found = [r for r in json.loads(data[16 : 16 + size])["objects"] if r["name"].endswith("divisor")][-1]
    begin = -(-(16 + size) // 4096) * 4096 + found["offset"]
    data[begin : begin + 4] = np.float32(value).tobytes()
    source.write_bytes(data)
    with pytest.raises(ArtifactError, match="not finite and positive"):
        upgrade(source, tmp_path / "out.ninfer", shapes=[small_shape("nvfp4")])


def test_versions_and_outputs_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out, _, _ = make(tmp_path, "groupwise")
    first = tmp_path / "one.ninfer"
    write_head(first, {"model_id": "x", "objects": []}, version=1)
    cut = tmp_path / "cut.ninfer"
    cut.write_bytes(source.read_bytes()[:-70_000])
    (tmp_path / "text").write_text("hello, this is no artifact")
    for path, message in (
        (out, "is an artifact of version 3 already"),
        (first, "is an artifact of version 1, which cannot be upgraded"),
        (cut, "the file has been cut off"),
        (tmp_path / "text", "is not an artifact: it starts with 68 65"),
        (source, "is not an official artifact of version 2; those are: qwen3.6-27b groupwise-int with 1124; "),
    ):
        assert main(["upgrade", str(path), str(tmp_path / "x")]) == ExitCode.BAD_ARTIFACT
        assert message in capsys.readouterr().err
    assert main(["upgrade", str(tmp_path / "none"), str(tmp_path / "x")]) == ExitCode.RUNTIME
    assert "No such file" in capsys.readouterr().err
    with pytest.raises(ArtifactError, match="is the file to be upgraded"):
        upgrade(source, source, shapes=[small_shape("groupwise")])
    with pytest.raises(ArtifactError, match="exists already"):
        upgrade(source, out, shapes=[small_shape("groupwise")])
    for template, message in ((b" \n", "the template is empty"), (b"\xff", "is not UTF-8: byte 0")):
        with pytest.raises(ConfigurationError, match=message):
            upgrade(source, tmp_path / "x", template, shapes=[small_shape("groupwise")])
    assert main(["upgrade", str(source), str(tmp_path / "x"), "--template", str(tmp_path / "no")]) == 2
    assert not (tmp_path / "x").exists()


KILLED = """
import sys, time
from pathlib import Path
from engine.artifact.upgrade import run
from tests.artifact.upgrade.test_upgrade import small_shape

run.BLOCK = 4096
place = float(sys.argv[3])

def progress(done, total):
    if done >= place * total:
        print("there", flush=True)
        time.sleep(60)

run.upgrade(Path(sys.argv[1]), Path(sys.argv[2]), b"x", shapes=[small_shape("groupwise")], progress=progress)
"""


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_killed_at_any_point(place: float, tmp_path: Path) -> None:
    source, out = tmp_path / "old.ninfer", tmp_path / "new.ninfer"
    write_old(source, "small", "groupwise", FAMILIES["groupwise"], np.random.default_rng(1))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    words = [sys.executable, "-c", KILLED, str(source), str(out), str(place)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    assert hashlib.sha256(source.read_bytes()).hexdigest() == digest
    upgrade(source, out, b"x", shapes=[small_shape("groupwise")])
    with Artifact.open(out) as artifact:
        assert artifact.resource("text", "chat_template.jinja") == b"x"


def test_the_script_needs_only_the_standard_library(tmp_path: Path) -> None:
    script = ROOT / "tools" / "upgrade_ninfer_v2_to_v3.py"
    source = tmp_path / "old.ninfer"
    shape = OFFICIAL[0]
    resources = dict.fromkeys(ROLES, 100)
    directory, payload = old_directory(
        shape.model_id, shape.weights_id, specs(sizes(shape.model_id, shape.weights_id, shape.objects), resources)
    )
    start = write_head(source, directory)
    os.truncate(source, start + payload)
    if shutil.disk_usage(tmp_path).free < payload:
        pytest.skip("an upgrade wants room for the whole file, whether it is sparse or not")
    words = [sys.executable, "-S", "-I", str(script), str(source), str(tmp_path / "new.ninfer")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "qwen3.6-27b, " in done.stdout
    assert "1422 parameters, its own chat template; artifact id" in done.stdout
    with Artifact.open(tmp_path / "new.ninfer") as artifact:
        assert artifact.text_config.hidden_size == 5120
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == ExitCode.BAD_ARTIFACT
    assert "exists already" in again.stderr
