"""The worked examples of the container and the layouts, byte for byte (spec/artifact.md §1.1.4, §3.1 to §3.5)."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from engine.artifact import Artifact
from engine.artifact.floats import swizzle_scales, unswizzle_scales
from engine.artifact.formats import find_format, grouped_format
from engine.artifact.grouped import GroupedPlanes, encode_grouped, pack_grouped
from engine.artifact.layouts import encoded_size, geometry
from engine.artifact.writer import ArtifactWriter, ResourceSpec, TensorSpec, payload_size, plan_objects

TINY_ID = bytes(range(16))
TINY_JSON = (
    '{"components":{"text":{"config":{},"resources":{"x.json":"r.t"}}},"objects":[{"id":"r.t","kind":"resource",'
    '"encoding":"raw_bytes_v1","offset":0,"bytes":7},{"id":"w.0","kind":"tensor","shape":[2],"format":"bf16",'
    '"layout":"contiguous_le_v1","offset":256,"bytes":4}],"bindings":{"text/final_norm":{"object":"w.0"}},"uses":[],'
    '"files":[{"path":null,"payload_bytes":260}],"metadata":{"name":"tiny"},"provenance":{}}'
)
TINY = (
    bytes.fromhex("4e494e4645520003 e00f000000000000")
    + TINY_ID
    + TINY_JSON.encode()
    + b" " * 3655
    + b'{"a":1}'
    + bytes(249)
    + bytes.fromhex("803f00c0")
)


def write_tiny(path: Path) -> None:
    plan = plan_objects([ResourceSpec("r.t", 7), TensorSpec("w.0", (2,), "bf16")])
    with ArtifactWriter(
        path,
        plan,
        components={"text": {"config": {}, "resources": {"x.json": "r.t"}}},
        bindings={"text/final_norm": {"object": "w.0"}},
        metadata={"name": "tiny"},
        artifact_id=TINY_ID,
    ) as writer:
        writer.write_resource("r.t", b'{"a":1}')
        writer.write_direct("w.0", np.array([1.0, -2.0], ml_dtypes.bfloat16))
        writer.commit()


def test_the_tiny_file_is_written_byte_for_byte(tmp_path: Path) -> None:
    assert len(TINY_JSON) == 409
    assert len(TINY) == 4356
    write_tiny(tmp_path / "tiny.ninfer")
    assert (tmp_path / "tiny.ninfer").read_bytes() == TINY
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.ninfer"]


def test_the_tiny_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tiny.ninfer"
    path.write_bytes(TINY)
    with Artifact.open(path) as artifact:
        assert artifact.artifact_id == TINY_ID
        assert artifact.name == "tiny"
        assert artifact.resource("text", "x.json") == b'{"a":1}'
        values = artifact.values("text/final_norm")
        assert values.dtype == ml_dtypes.bfloat16
        assert values.tolist() == [1.0, -2.0]
        assert artifact.directory.payload_bytes == 260
        assert json.loads(TINY_JSON)["objects"][1]["id"] == artifact.binding("text/final_norm").parts[0].object


@pytest.mark.parametrize(
    ("format", "values", "expected"),
    [
        ("fp32", np.array(1.0, np.float32), "0000803f"),
        ("bf16", np.array([1.0, -2.0], ml_dtypes.bfloat16), "803f00c0"),
        ("int32", np.array([-2], np.int32), "feffffff"),
    ],
)
def test_contiguous_words(format: str, values: npt.NDArray[np.generic], expected: str) -> None:
    assert values.tobytes().hex() == expected
    assert encoded_size(format, values.shape) == len(expected) // 2


def assemble(format: str, columns: int, planes: GroupedPlanes) -> bytes:
    shape = geometry(find_format(format), (planes.scales.shape[0], columns))
    out = bytearray(shape.bytes)
    for plane in shape.planes:
        data = {"base": planes.base.tobytes(), "high": planes.high.tobytes(), "scales": planes.scales.tobytes()}
        out[plane.offset : plane.offset + plane.bytes] = data[plane.name]
    return bytes(out)


def sparse(size: int, pieces: dict[int, str]) -> bytes:
    out = bytearray(size)
    for offset, text in pieces.items():
        data = bytes.fromhex(text)
        out[offset : offset + len(data)] = data
    return bytes(out)


@pytest.mark.parametrize(
    ("format", "columns", "values", "size", "pieces"),
    [
        ("q4_g64_fp16", 64, [-7, -1, 0, 1, 7, 3.5, -3.5, 0.25], 260, {0: "f910470c00", 256: "003c0000"}),
        ("q5_g64_fp16", 64, [-15, 15, -1, 1, 8, -8, 0, 2.5], 516, {0: "f11f8820", 256: "2500", 512: "003c0000"}),
        ("q6_g64_fp16", 64, [-31, 31, -1, 1, 16, -16, 0, -17], 516, {0: "f11f00f0", 256: "368d00", 512: "003c0000"}),
        ("q8_g32_fp16", 32, [-63.5, 63.5, 0.5, -1.0], 264, {0: "817f01fe", 256: "0038000000000000"}),
    ],
)
def test_grouped_examples(format: str, columns: int, values: list[float], size: int, pieces: dict[int, str]) -> None:
    row = np.zeros((1, columns), np.float32)
    row[0, : len(values)] = values
    assert assemble(format, columns, encode_grouped(format, row)) == sparse(size, pieces)


def test_the_negative_scale_example() -> None:
    codes = np.zeros((1, 128), np.int8)
    codes[0, :4] = [-8, 4, 0, -1]
    scales = np.array([[-1.0, 0.0]], np.float16)
    assert assemble("q4_g64_fp16", 64, pack_grouped("q4_g64_fp16", codes, scales)) == sparse(
        260, {0: "48f000", 256: "00bc0000"}
    )


@pytest.mark.parametrize(
    ("format", "shape", "size"),
    [
        ("q5_g64_fp16", (2, 130), 528),
        ("nvfp4", (128, 64), 4612),
        ("fp8_e4m3fn_row_bf16", (2, 3), 260),
        ("q6_g64_fp16", (248320, 5120), 993_280_000),
        ("q4_g64_fp16", (7168, 5120), 19_496_960),
        ("q5_g64_fp16", (7168, 5120), 24_084_480),
        ("q5_g64_fp16", (5120, 6144), 20_643_840),
        ("q8_g32_fp16", (5120, 10240), 55_705_600),
        ("q5_g64_fp16", (524288, 512), 176_160_768),
        ("nvfp4", (34816, 5120), 100_270_084),
        ("nvfp4", (5120, 17408), 50_135_044),
        ("fp8_e4m3fn_row_bf16", (248320, 5120), 1_271_895_040),
        ("ggml_rec_iq2_s_q2_0", (512, 2560, 640), 512 * 1_510_400),
        ("ggml_rec_iq2_xxs_q2_0", (512, 2560, 640), 512 * 1_305_600),
        ("ggml_rec_iq1_m_q2_0", (512, 2560, 640), 512 * 1_177_600),
        ("ggml_q6_k", (3, 512), 3 * 2 * 210),
        ("bf16", (), 2),
        ("fp32", (3, 5, 7), 420),
    ],
)
def test_published_sizes(format: str, shape: tuple[int, ...], size: int) -> None:
    assert encoded_size(format, shape) == size


def test_plane_offsets_of_the_size_check() -> None:
    planes = geometry(grouped_format("q5_g64_fp16"), (2, 130)).planes
    assert [(plane.name, plane.offset, plane.bytes) for plane in planes] == [
        ("base", 0, 256),
        ("high", 256, 64),
        ("scales", 512, 16),
    ]


SPOTS = [(0, 0, 0), (0, 3, 3), (1, 0, 16), (32, 0, 4), (33, 1, 21), (127, 3, 511), (0, 4, 512), (128, 0, 1024)]


@pytest.mark.parametrize(("row", "group", "position"), [*SPOTS, (129, 5, 1553)])
def test_nvfp4_scale_positions(row: int, group: int, position: int) -> None:
    natural = np.zeros((256, 8), np.uint8)
    natural[row, group] = 1
    stored = swizzle_scales(natural)
    assert np.flatnonzero(stored).tolist() == [position]
    assert (unswizzle_scales(stored, 128) == natural).all()


def test_nvfp4_example(tmp_path: Path) -> None:
    data = bytearray(4612)
    data[0] = 0x92
    data[4096:4608] = b"\x38" * 512
    data[4608:] = bytes.fromhex("0000803f")
    plan = plan_objects([TensorSpec("w", (128, 64), "nvfp4")])
    with ArtifactWriter(
        tmp_path / "a", plan, components={"text": {"config": {}}}, bindings={"w": {"object": "w"}}
    ) as writer:
        writer.write_span("w", 0, bytes(data))
        writer.commit()
    with Artifact.open(tmp_path / "a") as artifact:
        values = artifact.values("w")
    assert values.shape == (128, 64)
    assert values[0, :2].tolist() == [1.0, -0.5]
    assert not values[:, 2:].any()


def test_fp8_row_example(tmp_path: Path) -> None:
    data = sparse(260, {0: "383cc030007e", 256: "803f803f"})
    plan = plan_objects([TensorSpec("w", (2, 3), "fp8_e4m3fn_row_bf16")])
    with ArtifactWriter(
        tmp_path / "a", plan, components={"text": {"config": {}}}, bindings={"w": {"object": "w"}}
    ) as writer:
        writer.write_span("w", 0, data[:6])
        writer.write_span("w", 256, data[256:])
        writer.commit()
    with Artifact.open(tmp_path / "a") as artifact:
        assert artifact.values("w").tolist() == [[1, 1.5, -2], [0.5, 0, 448]]
        assert payload_size(plan) == artifact.directory.payload_bytes == 260
