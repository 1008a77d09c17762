"""Verification finds what is wrong, says where, and finds nothing in a good artifact (spec/artifact.md §5.6)."""

import copy
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.artifact import Artifact
from engine.artifact.formats import find_format
from engine.artifact.inventory import expected_parameters
from engine.artifact.layouts import geometry
from engine.artifact.parameters import text_parameters
from engine.artifact.verify import Pin, Report, verify
from engine.artifact.words import check_words
from engine.artifact.writer import ArtifactWriter, ResourceSpec, TensorSpec, plan_objects
from tests.artifact.builder import COMPONENTS, EMPTY_TEXT, tokenizer, write_model, write_random


def report_of(path: Path, **more: Any) -> Report:
    with Artifact.open(path) as artifact:
        inventory = expected_parameters(artifact.directory, artifact.text_config)
        return verify(artifact, inventory=inventory, **more)


def test_a_complete_artifact_is_good(tmp_path: Path) -> None:
    path = tmp_path / "a.ninfer"
    write_model(path)
    seen: list[tuple[str, int, int]] = []
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    pin = Pin(path.stat().st_size, digest.upper())
    report = report_of(path, pin=pin, progress=lambda *step: seen.append(step))
    assert report.problems == []
    assert report.good
    assert report.sha256 == digest
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1][1] == seen[-1][2] > path.stat().st_size
    assert report.notes[1].startswith("resource text/tokenizer_config.json: 2 bytes, SHA-256 44136fa355b3678a")


def test_a_file_set_is_good_and_a_missing_part_is_named(tmp_path: Path) -> None:
    write_model(tmp_path / "a", limit=65_536)
    assert report_of(tmp_path / "a").problems == []
    (tmp_path / "a.part-0001").unlink()
    (problem,) = report_of(tmp_path / "a").problems
    assert problem.startswith("part 1 (a.part-0001): cannot be opened")


def test_a_wrong_pin_is_reported(tmp_path: Path) -> None:
    write_model(tmp_path / "a")
    problems = report_of(tmp_path / "a", pin=Pin(5, "0" * 64)).problems
    assert [problem.split(":")[0] for problem in problems] == ["size", "SHA-256"]
    assert "the pin says 5" in problems[0]


def test_a_missing_parameter_is_reported(tmp_path: Path) -> None:
    write_model(tmp_path / "a", drop="text/layers/1/attention/key")
    assert report_of(tmp_path / "a").problems == ["parameter 'text/layers/1/attention/key' is missing"]


SMALL: list[tuple[str, list[tuple[int, bytes]], str | None]] = [
    ("q4_g64_fp16", [(256, b"\x01\x80")], None),  # a negative subnormal scale
    ("q4_g64_fp16", [(0, b"\x01")], "a group has scale 0 and codes that are not (first in row 0)"),
    ("q5_g64_fp16", [(256 + 16, b"\x01")], "a group has scale 0 and codes that are not (first in row 1)"),
    ("q6_g64_fp16", [(512, b"\x00\x80")], "a scale is -0 (first in row 0)"),
    ("q6_g64_fp16", [(512 + 4, b"\x00\x7c")], "a scale is not finite (first in row 1)"),
    ("q8_g32_fp16", [(256, b"\x00\x3c"), (0, b"\x80")], "a code is -128 (first in row 0)"),
    ("q8_g32_fp16", [(256, b"\x00\x3c"), (0, b"\x81")], None),
]


def problems_after(tmp_path: Path, spec: TensorSpec, pieces: list[tuple[int, bytes]]) -> list[str]:
    """Faults of a tensor of zeros with some of its bytes changed behind the writer's back."""
    path = tmp_path / "a"
    plan = plan_objects([spec])
    with ArtifactWriter(path, plan, components=EMPTY_TEXT, bindings={spec.id: {"object": spec.id}}) as writer:
        for plane in geometry(find_format(spec.format), spec.shape).planes:
            writer.write_span(spec.id, plane.offset, bytes(plane.bytes))
        writer.commit()
    data = bytearray(path.read_bytes())
    for offset, piece in pieces:
        data[4096 + offset : 4096 + offset + len(piece)] = piece
    path.write_bytes(data)
    with Artifact.open(path) as artifact:
        sizes: list[int] = []
        problems = list(check_words(artifact.tensor(spec.id), sizes.append))
        assert sum(sizes) == plan[0].bytes
    return problems


@pytest.mark.parametrize(("format", "pieces", "problem"), SMALL)
def test_grouped_words(tmp_path: Path, format: str, pieces: list[tuple[int, bytes]], problem: str | None) -> None:
    # Two rows of 128 columns: 128 bytes of base (256 for 8-bit), 16 or 32 of high bits, 4 scales (8 for 8-bit).
    assert problems_after(tmp_path, TensorSpec("w", (2, 128), format), pieces) == ([problem] if problem else [])


def test_padding_of_a_grouped_tensor(tmp_path: Path) -> None:
    one = b"\x00\x3c"
    spec = TensorSpec("w", (1, 70), "q4_g64_fp16")
    assert problems_after(tmp_path, spec, [(256 + 2, one), (32 + 3, b"\x10")]) == [
        "a column of padding has a code (first in row 0)"
    ]
    (tmp_path / "a").unlink()
    assert problems_after(tmp_path, TensorSpec("w", (1, 60), "q4_g64_fp16"), [(256 + 2, one)]) == [
        "a group of padding has a scale (first in row 0)"
    ]
    (tmp_path / "a").unlink()
    assert problems_after(tmp_path, spec, [(70, b"\x01")]) == ["padding between planes is not zero at byte 70"]


@pytest.mark.parametrize(
    ("format", "shape", "pieces", "problems"),
    [
        ("nvfp4", (128, 64), [(4608, b"\x00\x00\x80\x3f")], []),
        ("nvfp4", (128, 64), [], ["the divisor 0.0 is not finite and positive (first in row 0)"]),
        (
            "nvfp4",
            (256, 64),
            [(8192 + 1024, b"\x00\x00\x80\x3f"), (8192 + 512 + 7, b"\x7f")],
            ["a block scale is negative or NaN (first in row 128)"],
        ),
        ("fp8_e4m3fn_row_bf16", (2, 3), [(0, b"\x80\x00\x80")], []),
        ("fp8_e4m3fn_row_bf16", (2, 3), [(4, b"\x01")], ["a row has scale 0 and codes that are not (first in row 1)"]),
        ("fp8_e4m3fn_row_bf16", (2, 3), [(256, b"\x80\x3f"), (2, b"\xff")], ["a code is NaN (first in row 0)"]),
        (
            "fp8_e4m3fn_row_bf16",
            (2, 3),
            [(258, b"\x80\xbf")],
            ["a row scale is negative or not finite (first in row 1)"],
        ),
        ("fp8_e4m3fn_row_bf16", (2, 3), [(9, b"\x01")], ["padding between planes is not zero at byte 9"]),
        ("ggml_rec_iq1_m_q2_0", (2, 256, 64), [(64 * 56 - 1, b"\x01")], []),
        ("ggml_q6_k", (2, 256), [(5, b"\xff")], []),
        ("bf16", (4,), [(0, b"\xc0\x7f")], []),
    ],
)
def test_other_words(
    tmp_path: Path, format: str, shape: tuple[int, ...], pieces: list[tuple[int, bytes]], problems: list[str]
) -> None:
    assert problems_after(tmp_path, TensorSpec("w", shape, format), pieces) == problems


def test_padding_inside_a_record(tmp_path: Path) -> None:
    # [1, 256, 192] of ggml_rec_iq2_s_q2_0: gate 192 * 82 = 15744, up at 15872.
    spec = TensorSpec("w", (2, 256, 192), "ggml_rec_iq2_s_q2_0")
    record = 15872 + 15872 + 256 * 3 * 18
    assert problems_after(tmp_path, spec, [(record + 15744, b"\x01")]) == [
        "padding inside a record is not zero (first in row 1)"
    ]


def test_uses_policies_types_and_shapes_are_compared_with_the_inventory(tmp_path: Path) -> None:
    specs = [
        TensorSpec("text/token_embedding", (100, 63), "bf16"),
        TensorSpec("text/output_head", (100, 64), "q4_g64_fp16"),
        TensorSpec("text/final_norm", (64,), "fp32"),
        TensorSpec("other", (1,), "fp32"),
        TensorSpec("d", (), "fp32"),
    ]
    divisor = {"activation_input_divisor": {"object": "d"}, "other_role": {"object": "d"}}
    uses = [{"parameter": "text/output_head", "input": "text/final_hidden", "auxiliaries": divisor}]
    components = copy.deepcopy(EMPTY_TEXT)
    components["mtp"] = {"config": {}}
    components["later"] = {"config": {}}
    components["text"] = COMPONENTS["text"]
    write_random(tmp_path / "a", specs, np.random.default_rng(0), components=components, uses=uses)
    with Artifact.open(tmp_path / "a") as artifact:
        names = {"text/token_embedding", "text/output_head", "text/final_norm", "text/layers/0/gdn/query"}
        wanted = [p for p in text_parameters(artifact.text_config) if p.name in names]
        report = verify(artifact, inventory=wanted)
        divisor_value = float(artifact.values("d")[()])
    problems = [
        "component 'text' has no resource 'tokenizer.json'; it has: none",
        "component 'mtp': its target is None, not 'text'",
        "parameter 'text/token_embedding': has shape [100, 63], needs [100, 64]",
        "parameter 'text/output_head': its use for input 'text/final_hidden' has no activation policy",
        "parameter 'text/final_norm': is 'fp32', must be 'bf16'",
        "parameter 'text/layers/0/gdn/query' is missing",
        "use of 'text/output_head' for 'text/final_hidden': auxiliary 'other_role' is not known; "
        "known: activation_input_divisor",
    ]
    if divisor_value <= 0:
        bad = f"auxiliary 'activation_input_divisor' is {divisor_value!r}, not finite and positive"
        problems.append(f"use of 'text/output_head' for 'text/final_hidden': {bad}")
    assert sorted(report.problems) == sorted(problems)
    assert "component 'later' is not known to this version and was not checked" in report.notes
    assert "2 parameters belong to no component known here, first 'other'" in report.notes


@pytest.mark.parametrize(
    ("ids", "token_count", "problem"),
    [
        ([0, 9, 5], 10, None),
        ([0, 9, 9], 10, "proposal/token_ids: a token appears twice"),
        ([0, 9, 10], 10, "proposal/token_ids: ids 0 to 10 leave 0..9"),
        ([0, 9, -1], None, "proposal/token_ids: ids -1 to 9 leave 0..59"),
    ],
)
def test_proposal_ids(tmp_path: Path, ids: list[int], token_count: int | None, problem: str | None) -> None:
    config = {**COMPONENTS["text"]["config"], "vocab_size": 60}
    resources = tokenizer(token_count) if token_count is not None else {}
    text = {
        "config": config,
        "resources": {role: role for role in resources},
        "proposal": {"domain": "indexed", "rows": 3},
    }
    plan = plan_objects(
        [*(ResourceSpec(role, len(data)) for role, data in resources.items()), TensorSpec("i", (3,), "int32")]
    )
    bindings = {"proposal/token_ids": {"object": "i"}}
    with ArtifactWriter(tmp_path / "a", plan, components={"text": text}, bindings=bindings) as writer:
        for role, data in resources.items():
            writer.write_resource(role, data)
        writer.write_direct("i", np.array(ids, np.int32))
        writer.commit()
    with Artifact.open(tmp_path / "a") as artifact:
        problems = verify(artifact).problems
    assert problems == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("role", "data", "problem"),
    [
        ("tokenizer.json", b"[]", "resource text/tokenizer.json: is not a JSON object"),
        ("tokenizer.json", b"{", "resource text/tokenizer.json: is not JSON in UTF-8: Expecting property name"),
        ("chat_template.jinja", b"\xff", "resource text/chat_template.jinja: is not UTF-8: "),
    ],
)
def test_resources(tmp_path: Path, role: str, data: bytes, problem: str) -> None:
    text = {**COMPONENTS["text"], "resources": {role: "r"}}
    plan = plan_objects([ResourceSpec("r", len(data))])
    with ArtifactWriter(tmp_path / "a", plan, components={"text": text}, bindings={}) as writer:
        writer.write_resource("r", data)
        writer.commit()
    with Artifact.open(tmp_path / "a") as artifact:
        (found,) = verify(artifact).problems
    assert found.startswith(problem)


@pytest.mark.parametrize("rows", [9, 300])
def test_blocks_of_rows_cover_every_tensor_once(tmp_path: Path, rows: int) -> None:
    spec = TensorSpec("w", (rows, 8192), "q4_g64_fp16")
    last_scale = geometry(find_format(spec.format), spec.shape).bytes - 2
    problems = problems_after(tmp_path, spec, [(last_scale, b"\x00\x80")])
    assert problems == [f"a scale is -0 (first in row {rows - 1})"]
