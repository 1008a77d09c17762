"""Grouped integers: packing, the reference encoder and its order of roundings (spec/artifact.md §2.2, §2.6, §3.2)."""

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine.artifact.formats import GROUPED, Q8, Grouped, grouped_format
from engine.artifact.grouped import decode_grouped, encode_grouped, pack_grouped, quantize_absmax, unpack_codes
from engine.artifact.layouts import align_up, encoded_size, geometry
from engine.exits import ArtifactError

formats = st.sampled_from(GROUPED)
names = [format.name for format in GROUPED]


def padded(columns: int) -> int:
    return align_up(columns, 128)


@given(format=formats, rows=st.integers(1, 5), columns=st.integers(1, 400), seed=st.integers(0, 2**32 - 1))
def test_codes_survive_packing_bit_for_bit(format: Grouped, rows: int, columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    width = padded(columns)
    codes = random.integers(format.minimum, format.maximum + 1, (rows, width)).astype(np.int8)
    codes[:, columns:] = 0
    scales = random.standard_normal((rows, width // format.group)).astype(np.float16)
    planes = pack_grouped(format.name, codes, scales)
    sizes = {plane.name: plane.bytes for plane in geometry(format, (rows, columns)).planes}
    assert planes.base.nbytes == sizes["base"]
    assert planes.high.nbytes == sizes.get("high", 0)
    assert planes.scales.nbytes == sizes["scales"]
    assert (unpack_codes(format, planes.base, planes.high) == codes).all()
    expected = np.repeat(scales.astype(np.float32), format.group, axis=1) * codes.astype(np.float32)
    assert (decode_grouped(format, planes, columns) == expected[:, :columns]).all()


@given(
    format=formats,
    x=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=200),
        elements=st.floats(-1000, 1000, width=32),
        fill=st.just(0.0),
    ),
)
def test_the_error_of_encoding_is_at_most_half_a_step(format: Grouped, x: npt.NDArray[np.float32]) -> None:
    planes = encode_grouped(format.name, x)
    decoded = decode_grouped(format, planes, x.shape[1])
    step = np.repeat(np.abs(planes.scales.astype(np.float64)), format.group, axis=1)[:, : x.shape[1]]
    # The scale itself is rounded to float16, so the largest weight may be clipped by 2^-11 of itself (or by half
    # of the smallest scale, per code), on top of half a step.
    slack = np.maximum(np.abs(x) * 2.0**-10, 2.0**-25 * format.maximum)
    assert (np.abs(decoded - x.astype(np.float64)) <= step / 2 + slack).all()


@given(format=formats, rows=st.integers(1, 6), columns=st.integers(1, 300), cut=st.integers(0, 6), seed=st.integers(0))
def test_chunks_of_rows_give_the_same_words(format: Grouped, rows: int, columns: int, cut: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((rows, columns)).astype(ml_dtypes.bfloat16)
    whole = encode_grouped(format.name, x)
    pieces = [encode_grouped(format.name, piece) for piece in (x[:cut], x[cut:]) if len(piece)]
    for name in ("base", "high", "scales"):
        joined = np.concatenate([getattr(piece, name) for piece in pieces])
        assert joined.tobytes() == getattr(whole, name).tobytes()


def scalar_absmax(format: Grouped, group: list[float]) -> tuple[int, list[int]]:
    """The pseudo-code of §2.6, one number at a time."""
    x = [np.float32(value) for value in group]
    largest = max(abs(value) for value in x)
    if largest == 0:
        return 0, [0] * len(x)
    scale = np.float16(np.float32(np.float64(largest) / np.float64(format.maximum)))
    if scale == 0:
        scale = np.float16(2.0**-24)
    inverse = np.float32(np.float64(1) / np.float64(scale))
    codes = [int(min(max(np.rint(np.float32(value * inverse)), format.minimum), format.maximum)) for value in x]
    return int(scale.view(np.uint16)), codes


@settings(max_examples=60)
@given(format=formats, data=st.data())
def test_the_encoder_follows_the_order_of_roundings(format: Grouped, data: st.DataObject) -> None:
    exponent = data.draw(st.integers(-40, 15))
    values = data.draw(st.lists(st.floats(-1, 1, width=32), min_size=format.group, max_size=format.group))
    group = [float(np.float32(np.ldexp(value, exponent))) for value in values]
    codes, scales = quantize_absmax(format.name, np.array([group], np.float32))
    expected_scale, expected_codes = scalar_absmax(format, group)
    assert int(scales.view(np.uint16)[0, 0]) == expected_scale
    assert codes[0, : format.group].tolist() == expected_codes
    assert not codes[0, format.group :].any()
    assert not scales.view(np.uint16)[0, 1:].any()


@pytest.mark.parametrize("name", names)
def test_a_scale_that_would_vanish_becomes_the_smallest(name: str) -> None:
    row = np.zeros((1, 64), np.float32)
    row[0, :2] = 2.0**-26, -(2.0**-24)
    codes, scales = quantize_absmax(name, row)
    assert scales.view(np.uint16)[0, 0] == 1
    assert codes[0, :2].tolist() == [0, -1]  # 2^-26 / 2^-24 = 0.25


def test_the_reciprocal_is_multiplied() -> None:
    # Find a value for which x * (1/s) and x / s round to different codes, and check which one is stored.
    scale = np.float16(0.1)
    inverse = np.float32(1 / np.float64(scale))
    candidates = np.float32(scale) * (np.arange(0.5, 126, 1, dtype=np.float32))
    near = np.concatenate([np.nextafter(candidates, np.float32(0)), candidates])
    differ = np.rint(near * inverse) != np.rint(near / np.float32(scale))
    assert differ.any()
    x = near[differ][0]
    row = np.zeros((1, 32), np.float32)
    row[0, :2] = np.float32(scale) * 127, x
    codes, scales = quantize_absmax(Q8.name, row)
    assert scales[0, 0] == scale
    assert codes[0, 1] == np.rint(x * inverse)


@pytest.mark.parametrize("name", names)
def test_a_group_of_zeros_of_either_sign_has_scale_plus_zero(name: str) -> None:
    row = np.zeros((1, 128), np.float32)
    row[0, ::2] = -0.0
    planes = encode_grouped(name, row)
    assert not planes.scales.view(np.uint16).any()
    assert not planes.base.any()
    assert not planes.high.any()


@pytest.mark.parametrize("name", names)
def test_negative_scales_multiply_with_their_sign(name: str) -> None:
    format = grouped_format(name)
    codes = np.zeros((1, 128), np.int8)
    codes[0, :2] = format.minimum, 1
    scales = np.zeros((1, 128 // format.group), np.float16)
    scales[0, 0] = -0.5
    decoded = decode_grouped(format, pack_grouped(name, codes, scales), 2)
    assert decoded.tolist() == [[-0.5 * format.minimum, -0.5]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    row = np.zeros((2, 64), np.float32)
    row[1, 3] = value
    with pytest.raises(ArtifactError, match="not finite"):
        encode_grouped("q4_g64_fp16", row)


def test_weights_beyond_the_scale_are_refused() -> None:
    row = np.full((1, 64), 1e6, np.float32)
    with pytest.raises(ArtifactError, match=r"beyond float16 in 'q4_g64_fp16'.*458528"):
        encode_grouped("q4_g64_fp16", row)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32, np.float64])
def test_every_float_type_is_encoded_from_its_float32_value(dtype: npt.DTypeLike) -> None:
    x = np.random.default_rng(7).standard_normal((3, 200)).astype(dtype)
    planes, again = encode_grouped("q5_g64_fp16", x), encode_grouped("q5_g64_fp16", x.astype(np.float32))
    assert planes.base.tobytes() == again.base.tobytes()
    assert planes.scales.tobytes() == again.scales.tobytes()


def test_codes_outside_the_format_are_refused() -> None:
    codes = np.full((1, 128), -128, np.int8)
    with pytest.raises(ArtifactError, match="-127 to 127"):
        pack_grouped("q8_g32_fp16", codes, np.ones((1, 4), np.float16))
    with pytest.raises(ArtifactError, match="belong together"):
        pack_grouped("q8_g32_fp16", codes, np.ones((1, 2), np.float16))


@pytest.mark.parametrize(
    ("format", "shape", "message"),
    [
        ("q9", (1, 1), "unknown format 'q9'; known formats: bf16"),
        ("Q4G64_F16S", (1, 1), "version 3 spells it 'q4_g64_fp16'"),
        ("q4_g64_fp16", (4,), r"holds matrices.*\[4\]"),
        ("nvfp4", (127, 64), r"rows in 128s and columns in 64s, not \[127,64\]"),
        ("ggml_q6_k", (2, 100), r"last axis in 256s, not \[2,100\]"),
        ("bf16", (0,), r"shape \[0\]"),
        ("bf16", (1,) * 17, "0 to 16"),
        ("bf16", (2**40, 2**40), "2\\^64-1"),
    ],
)
def test_impossible_formats_and_shapes_are_refused(format: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        encoded_size(format, shape)
