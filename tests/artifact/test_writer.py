"""Writing and reading back: random objects, file sets, bindings by parts, and publication (spec/artifact.md §1)."""

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.artifact import Artifact
from engine.artifact.grouped import encode_grouped
from engine.artifact.writer import (
    ArtifactWriter,
    Coverage,
    ResourceSpec,
    TensorSpec,
    payload_size,
    plan_files,
    plan_objects,
)
from engine.exits import ArtifactError, NInferError
from tests.artifact.builder import EMPTY_TEXT, write_random

size = st.integers(1, 300)
direct = st.builds(
    lambda id, shape, format: TensorSpec(id, tuple(shape), format),
    st.just(""),
    st.lists(st.integers(1, 9), max_size=4),
    st.sampled_from(["bf16", "fp32", "int32"]),
)
grouped = st.builds(
    lambda rows, columns, format: TensorSpec("", (rows, columns), format),
    st.integers(1, 20),
    size,
    st.sampled_from(["q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "fp8_e4m3fn_row_bf16"]),
)
blocks = st.builds(
    lambda rows, columns: TensorSpec("", (128 * rows, 64 * columns), "nvfp4"), st.integers(1, 2), st.integers(1, 3)
)
specs = st.lists(
    st.one_of(direct, grouped, blocks, st.builds(lambda n: ResourceSpec("", n), size)), min_size=1, max_size=6
)


def numbered(items: list[Any]) -> list[Any]:
    return [
        TensorSpec(f"o/{index}", item.shape, item.format)
        if isinstance(item, TensorSpec)
        else ResourceSpec(f"o/{index}", item.size)
        for index, item in enumerate(items)
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=specs, seed=st.integers(0, 2**31), small=st.booleans())
def test_what_is_written_is_read(tmp_path: Path, items: list[Any], seed: int, small: bool) -> None:
    path = tmp_path / f"{seed}-{os.urandom(6).hex()}.ninfer"
    random = np.random.default_rng(seed)
    limit = 12_288 if small else 32_000_000_000
    expected = write_random(path, numbered(items), random, limit=limit)
    parts = sorted(other.name for other in tmp_path.iterdir() if other.name.startswith(path.name))
    with Artifact.open(path) as artifact:
        assert parts == [path.name, *(file.path for file in artifact.directory.files[1:])]
        for id, value in expected.items():
            if isinstance(value, bytes):
                assert artifact.resource_object(id) == value
            else:
                read = artifact.values(id)
                assert read.dtype == value.dtype
                assert read.shape == value.shape == artifact.shape(id)
                assert read.tobytes() == value.tobytes()
    for name in parts:
        assert (tmp_path / name).stat().st_size <= limit
        (tmp_path / name).unlink()


def straddling(path: Path) -> np.ndarray[Any, np.dtype[np.generic]]:
    """A q5 matrix of 36 kB behind a resource, over files of at most three pages: base and scales are cut."""
    expected = write_random(
        path,
        [ResourceSpec("r", 1), TensorSpec("w", (100, 512), "q5_g64_fp16"), TensorSpec("v", (9,), "fp32")],
        np.random.default_rng(3),
        limit=12_288,
        components={"text": {"config": {}, "resources": {"r": "r"}}},
    )
    value = expected["w"]
    assert isinstance(value, np.ndarray)
    return value


def test_an_object_may_straddle_files_in_the_middle_of_a_plane(tmp_path: Path) -> None:
    expected = straddling(tmp_path / "a.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        ends = np.cumsum([file.payload_bytes for file in artifact.directory.files])
        tensor = artifact.tensor("w")
        planes = tensor.geometry.planes
        inside = [
            plane.name
            for plane in planes
            for end in ends
            if tensor.offset + plane.offset < end < tensor.offset + plane.offset + plane.bytes
        ]
        assert set(inside) == {"base", "scales"}
        assert artifact.values("w").tobytes() == expected.tobytes()
        assert tensor.plane("base").nbytes == planes[0].bytes
        assert (tensor.rows(17, 61) == expected[17:61]).all()


def test_parts_start_on_pages_and_are_named_in_order(tmp_path: Path) -> None:
    straddling(tmp_path / "a.ninfer")
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        files = artifact.directory.files
        assert [file.path for file in files[1:]] == [f"a.ninfer.part-{i:04d}" for i in range(1, len(files))]
        assert all(file.payload_bytes % 4096 == 0 for file in files[:-1])


def test_a_missing_part_is_an_error_only_when_it_is_needed(tmp_path: Path) -> None:
    straddling(tmp_path / "a.ninfer")
    (tmp_path / "a.ninfer.part-0002").unlink()
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert len(artifact.resource("text", "r")) == 1
        with pytest.raises(ArtifactError, match=r"a.ninfer: part 2 \(a.ninfer.part-0002\): cannot be opened"):
            artifact.values("w")


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (0, b"NINFER", r"part 1 \(a.ninfer.part-0001\): is not a continuation file"),
        (8, b"\x02", "says it is part 2, not part 1"),
        (16, b"\xff" * 16, "belongs to artifact " + "ff" * 16),
    ],
)
def test_a_foreign_part_is_refused(tmp_path: Path, offset: int, data: bytes, message: str) -> None:
    straddling(tmp_path / "a.ninfer")
    part = bytearray((tmp_path / "a.ninfer.part-0001").read_bytes())
    part[offset : offset + len(data)] = data
    (tmp_path / "a.ninfer.part-0001").write_bytes(part)
    with Artifact.open(tmp_path / "a.ninfer") as artifact, pytest.raises(ArtifactError, match=message):
        artifact.values("w")


@pytest.mark.parametrize("change", [-1, 1, -12_000])
def test_a_part_of_another_length_is_refused(tmp_path: Path, change: int) -> None:
    straddling(tmp_path / "a.ninfer")
    part = tmp_path / "a.ninfer.part-0001"
    os.truncate(part, part.stat().st_size + change)
    with (
        Artifact.open(tmp_path / "a.ninfer") as artifact,
        pytest.raises(ArtifactError, match=r"part 1 .*(the file has|ends at|is not a)"),
    ):
        artifact.values("w")


def test_a_file_cut_while_it_is_open_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    write_random(tmp_path / "a", [TensorSpec("w", (4000,), "fp32")], np.random.default_rng(0))
    with Artifact.open(tmp_path / "a") as artifact:
        artifact.values("w")
        os.truncate(tmp_path / "a", 5000)
        with pytest.raises(ArtifactError, match="its length changed"):
            artifact.values("w")


def test_bindings_by_parts_are_concatenated_in_order(tmp_path: Path) -> None:
    specs = [
        TensorSpec("m", (6, 130), "q4_g64_fp16"),
        TensorSpec("n", (4, 130), "bf16"),
        TensorSpec("i", (3,), "int32"),
    ]
    bindings = {
        "rows": {"parts": [{"object": "m", "range": [130, 520]}]},
        "both": {"parts": [{"object": "n", "range": [0, 260]}, {"object": "m", "range": [390, 780]}]},
        "odd": {"parts": [{"object": "m", "range": [7, 400]}]},
        "tied": {"object": "m"},
        "one": {"parts": [{"object": "n", "range": [390, 520]}]},
        "mixed": {"parts": [{"object": "n", "range": [0, 1]}, {"object": "i", "range": [0, 1]}]},
    }
    expected = write_random(tmp_path / "a", specs, np.random.default_rng(1), bindings=bindings)
    m, n = expected["m"], expected["n"]
    assert isinstance(m, np.ndarray)
    assert isinstance(n, np.ndarray)
    with Artifact.open(tmp_path / "a") as artifact:
        assert (artifact.values("rows") == m[1:4]).all()
        assert artifact.values("rows").shape == artifact.shape("rows") == (3, 130)
        both = artifact.values("both")
        assert both.dtype == np.float32
        assert (both == np.concatenate([n[:2].astype(np.float32), m[3:]])).all()
        assert artifact.formats("both") == ("bf16", "q4_g64_fp16")
        assert (artifact.values("odd") == m.reshape(-1)[7:400]).all()
        assert (artifact.values("tied") == m).all()
        assert artifact.shape("one") == (1, 130)
        assert [part.rows for part in artifact.encoded("both")] == [(0, 2), (3, 6)]
        with pytest.raises(ArtifactError, match="not whole rows of 130"):
            _ = artifact.encoded("odd")[0].rows
        with pytest.raises(ArtifactError, match="mixes integers and floats: n, i"):
            artifact.values("mixed")
        with pytest.raises(ArtifactError, match="no parameter 'other'"):
            artifact.values("other")
        with pytest.raises(ArtifactError, match=r"component 'text' has no resource 'tokenizer.json'; it has: none"):
            artifact.resource("text", "tokenizer.json")
        with pytest.raises(ArtifactError, match="no component 'vision'"):
            artifact.resource("vision", "x")


def test_values_belong_to_the_caller_and_outlive_the_artifact(tmp_path: Path) -> None:
    write_random(tmp_path / "a", [TensorSpec("w", (40,), "fp32")], np.random.default_rng(1))
    with Artifact.open(tmp_path / "a") as artifact:
        values, plane = artifact.values("w"), artifact.tensor("w").plane("words")
    assert values.flags.writeable
    assert not plane.flags.writeable
    assert plane.tobytes() == values.tobytes()
    with pytest.raises(ArtifactError, match="the artifact is closed"):
        artifact.values("w")


def test_ggml_formats_are_listed_and_refused_when_asked_for(tmp_path: Path) -> None:
    plan = plan_objects([TensorSpec("w", (2, 256), "ggml_q6_k"), TensorSpec("v", (1,), "fp32")])
    bindings = {"w": {"object": "w"}, "v": {"object": "v"}}
    with ArtifactWriter(tmp_path / "a", plan, components=EMPTY_TEXT, bindings=bindings) as writer:
        writer.write_span("w", 0, bytes(420))
        writer.write_direct("v", np.ones(1, np.float32))
        writer.commit()
    with Artifact.open(tmp_path / "a") as artifact:
        assert artifact.values("v").tolist() == [1]
        assert artifact.tensor("w").plane("blocks").nbytes == 420
        with pytest.raises(ArtifactError, match=r"object 'w'.*'ggml_q6_k' cannot be decoded by this version"):
            artifact.values("w")


def tiny_writer(path: Path, **more: Any) -> ArtifactWriter:
    plan = plan_objects([ResourceSpec("r", 3), TensorSpec("m", (4, 64), "q5_g64_fp16"), TensorSpec("v", (4,), "bf16")])
    return ArtifactWriter(path, plan, components=EMPTY_TEXT, bindings={}, **more)


def fill(writer: ArtifactWriter) -> None:
    writer.write_resource("r", b"abc")
    writer.write_grouped_rows("m", 0, encode_grouped("q5_g64_fp16", np.ones((4, 64), np.float32)))
    writer.write_direct("v", np.ones(4, ml_dtypes.bfloat16))


def test_overlaps_and_holes_are_refused(tmp_path: Path) -> None:
    planes = encode_grouped("q5_g64_fp16", np.ones((3, 64), np.float32))
    with tiny_writer(tmp_path / "a") as writer:
        writer.write_grouped_rows("m", 1, planes)
        with pytest.raises(ArtifactError, match=r"object 'm': bytes .* overlap"):
            writer.write_grouped_rows("m", 0, planes)
        with pytest.raises(ArtifactError, match="rows 2 to 5 of 4"):
            writer.write_grouped_rows("m", 2, planes)
        with pytest.raises(ArtifactError, match="an array of float32 is not written"):
            writer.write_direct("v", np.ones(4, np.float32))
        with pytest.raises(ArtifactError, match="bytes 4 to 12 are not inside an object of 8"):
            writer.write_direct("v", np.ones(4, ml_dtypes.bfloat16), 2)
        with pytest.raises(ArtifactError, match="2 bytes given, 3 planned"):
            writer.write_resource("r", b"ab")
        with pytest.raises(ArtifactError, match="'x' is not planned"):
            writer.write_resource("x", b"ab")
        writer.write_resource("r", b"abc")
        with pytest.raises(ArtifactError, match=r"object 'm': byte 0 of .* was never written"):
            writer.commit()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_when_writing_fails(tmp_path: Path) -> None:
    def fail() -> None:
        with tiny_writer(tmp_path / "a", limit=8192) as writer:
            fill(writer)
            assert not (tmp_path / "a").exists()
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("taken", ["a", "a.part-0001"])
def test_existing_files_are_never_overwritten(tmp_path: Path, taken: str) -> None:
    def specs() -> ArtifactWriter:
        plan = plan_objects([TensorSpec("v", (5000,), "fp32")])
        return ArtifactWriter(tmp_path / "a", plan, components=EMPTY_TEXT, bindings={}, limit=12_288)

    (tmp_path / taken).write_bytes(b"precious")
    with pytest.raises(ArtifactError, match=f"{taken}: exists already"):
        specs()
    (tmp_path / taken).unlink()
    with specs() as writer:
        writer.write_direct("v", np.zeros(5000, np.float32))
        (tmp_path / taken).write_bytes(b"precious")
        with pytest.raises(ArtifactError, match=f"{taken}: exists already"):
            writer.commit()
    assert [path.name for path in tmp_path.iterdir()] == [taken]
    assert (tmp_path / taken).read_bytes() == b"precious"


def test_a_file_set_with_an_impossible_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tiny_writer(tmp_path / "missing" / "a")


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    plan = plan_objects([TensorSpec("w", (2**44,), "fp32")])
    with pytest.raises(NInferError, match=r"takes 70368744181760 bytes; its disk has \d+ bytes free"):
        ArtifactWriter(tmp_path / "a", plan, components=EMPTY_TEXT, bindings={}, limit=2**60)
    assert list(tmp_path.iterdir()) == []


def test_the_directory_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    plan = plan_objects([TensorSpec("w", (2,), "fp32")])
    with pytest.raises(ArtifactError, match=r"range .0,3. is not inside 'w', which has 2 elements"):
        ArtifactWriter(
            tmp_path / "a",
            plan,
            components=EMPTY_TEXT,
            bindings={"p": {"parts": [{"object": "w", "range": [0, 3]}]}},
        )
    with pytest.raises(ArtifactError, match="16 bytes, not 3"):
        tiny_writer(tmp_path / "a", artifact_id=b"abc")
    assert list(tmp_path.iterdir()) == []


def test_plans_follow_the_rules() -> None:
    plan = plan_objects(
        [ResourceSpec("a", 300), ResourceSpec("b", 1), TensorSpec("c", (3,), "bf16"), ResourceSpec("d", 5)]
    )
    assert [(item.id, item.offset, item.bytes) for item in plan] == [
        ("a", 0, 300),
        ("b", 300, 1),
        ("c", 512, 6),
        ("d", 518, 5),
    ]
    assert payload_size(plan) == 523
    with pytest.raises(ArtifactError, match="'a' is empty, holds a NUL, or is used twice"):
        plan_objects([ResourceSpec("a", 1), ResourceSpec("a", 1)])
    with pytest.raises(ArtifactError, match="resource 'a' is empty"):
        plan_objects([ResourceSpec("a", 0)])
    with pytest.raises(ArtifactError, match="object 'w': unknown format"):
        plan_objects([TensorSpec("w", (1,), "fp64")])


@given(payload=st.integers(1, 10**7), words=st.integers(0, 9000), limit=st.integers(60_000, 10**6))
def test_files_cover_the_payload_and_respect_the_limit(payload: int, words: int, limit: int) -> None:
    directory = {"components": {}, "metadata": {"text": "x" * words}}
    text, files = plan_files(directory, payload, "entry", limit)
    start = 32 + len(text)
    assert start % 4096 == 0
    assert sum(file["payload_bytes"] for file in files) == payload
    assert start + files[0]["payload_bytes"] <= limit
    assert all(4096 + file["payload_bytes"] <= limit for file in files[1:])
    assert all(file["payload_bytes"] % 4096 == 0 for file in files[:-1])
    assert json.loads(text)["files"] == files
    assert list(json.loads(text)) == ["components", "files", "metadata"]


def test_a_limit_without_room_is_refused() -> None:
    with pytest.raises(ArtifactError, match="not less than the file limit of 4096"):
        plan_files({}, 5, "a", 4096)
    with pytest.raises(ArtifactError, match="leaves no page for payload"):
        plan_files({}, 5000, "a", 8000)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=12))
def test_coverage_agrees_with_a_set_of_bytes(pieces: list[tuple[int, int]]) -> None:
    coverage, written = Coverage(32), set[int]()
    for begin, length in pieces:
        span = set(range(begin, begin + length))
        if max(span) >= 32 or span & written:
            with pytest.raises(ArtifactError):
                coverage.add(begin, begin + length)
        else:
            coverage.add(begin, begin + length)
            written |= span
    holes = sorted(set(range(32)) - written)
    assert coverage.first_hole() == (holes[0] if holes else None)
