"""The encoders of eight- and four-bit floats (spec/artifact.md §2.9, §2.10)."""

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.artifact.floats import (
    E2M1,
    E4M3,
    check_fp8_rows,
    decode_fp8_rows,
    decode_nvfp4,
    encode_fp8_rows,
    encode_nvfp4,
    nvfp4_divisor,
)
from engine.exits import ArtifactError


def nearest_e4m3(value: np.float32) -> int:
    """Ties go to the even word; found by looking at every word of the value's sign."""
    words = range(0x7F)
    distances = [abs(float(E4M3[w]) - abs(float(value))) for w in words]
    best = min(distances)
    candidates = [w for w in words if distances[w] == best]
    word = candidates[0] if len(candidates) == 1 else next(w for w in candidates if w % 2 == 0)
    return word | (0x80 if np.signbit(value) else 0)


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]))
@settings(max_examples=20, deadline=None)
def test_fp8_rows_are_encoded_by_the_letter(seed: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    x = (random.standard_normal((3, 9)) * scale).astype(np.float32).astype(ml_dtypes.bfloat16)
    x[0, 3], x[0, 4], x[2] = 0.0, -0.0, 0.0
    codes, scales = encode_fp8_rows(x)
    check_fp8_rows(codes, scales)
    for row in range(3):
        values = x[row].astype(np.float32)
        amax = np.abs(values).max()
        if amax == 0:
            assert not codes[row].any()
            assert scales[row : row + 1].view(np.uint16)[0] == 0
            continue
        expected = np.float32(np.float64(amax) / 448).astype(ml_dtypes.bfloat16)
        assert scales[row] == expected
        inverse = np.float32(1 / np.float64(expected))
        for value, code in zip(values, codes[row], strict=True):
            t = np.float32(np.float64(value) * np.float64(inverse))
            assert code == nearest_e4m3(np.clip(t, np.float32(-448), np.float32(448)))
    decoded = decode_fp8_rows(codes, scales)
    assert np.abs(decoded - x.astype(np.float32)).max() <= np.abs(x.astype(np.float32)).max() / 16


def test_the_smallest_rows_and_what_cannot_be_encoded() -> None:
    codes, scales = encode_fp8_rows(np.array([[2.0**-119, 2.0**-125]], np.float32))
    assert codes.tolist() == [[0x7E, 0x4E]]
    assert scales.view(np.uint16).tolist() == [np.float32(2.0**-119 / 448).astype(ml_dtypes.bfloat16).view(np.uint16)]
    with pytest.raises(ArtifactError, match="a row is too small"):
        encode_fp8_rows(np.array([[2.0**-126, 0]], np.float32))
    with pytest.raises(ArtifactError, match="not finite"):
        encode_fp8_rows(np.array([[np.inf]], np.float32))
    with pytest.raises(ArtifactError, match="not finite"):
        encode_nvfp4(np.full((1, 16), np.nan, np.float32), np.float32(1))
    with pytest.raises(ArtifactError, match="no finite nvfp4 divisor"):
        nvfp4_divisor(1e-38)


def test_wrong_fp8_words_are_found() -> None:
    one = np.array([1], ml_dtypes.bfloat16)
    for code, scale, message in (
        (0x7F, one, "a code is NaN"),
        (1, -one, "negative or not finite"),
        (1, np.array([np.inf], ml_dtypes.bfloat16), "negative or not finite"),
        (1, np.array([0], ml_dtypes.bfloat16), "scale 0 and codes"),
    ):
        with pytest.raises(ArtifactError, match=message):
            check_fp8_rows(np.array([[code]], np.uint8), scale)


def by_the_letter(x: npt.NDArray[np.float32], divisor: np.float32) -> tuple[list[int], int]:
    """One block of 16 by §2.10."""
    bmax = np.abs(x).max()
    raw = min(np.float32(np.float32(bmax * divisor) / np.float32(6)), np.float32(448))
    scale = nearest_e4m3(raw)
    if scale == 0 and bmax > 0:
        scale = 1
    words = []
    for value in x:
        if scale == 0:
            words.append(0)
            continue
        t = np.float32(np.float32(value * divisor) / E4M3[scale])
        m = abs(t)
        passed = (m > 0.25, m >= 0.75, m > 1.25, m >= 1.75, m > 2.5, m >= 3.5, m > 5.0)
        words.append(sum(map(int, passed)) | (8 if np.signbit(t) else 0))
    return words, scale


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-6, 0.02, 1.0, 1e4]))
@settings(max_examples=20, deadline=None)
def test_nvfp4_is_encoded_by_the_letter(seed: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    x = (random.standard_normal((2, 64)) * scale * 10.0 ** random.integers(-6, 1, (2, 64))).astype(np.float32)
    x[1, :16] = 0
    divisor = nvfp4_divisor(float(np.abs(x).max()))
    assert divisor == np.float32(2688) / np.float32(np.abs(x).max())
    codes, scales = encode_nvfp4(x, divisor)
    words = np.empty(x.shape, np.uint8)
    words[:, 0::2], words[:, 1::2] = codes & 15, codes >> 4
    for row in range(2):
        for block in range(4):
            expected, word = by_the_letter(x[row, block * 16 : block * 16 + 16], divisor)
            assert scales[row, block] == word
            assert words[row, block * 16 : block * 16 + 16].tolist() == expected
    decoded = decode_nvfp4(codes, scales, divisor)
    assert np.abs(decoded - x).max() <= np.abs(x).max() / 4
    assert nvfp4_divisor(0.0) == 1.0


def test_ties_of_the_four_bit_grid_go_to_the_even_word() -> None:
    middles = (np.abs(E2M1[:7]) + np.abs(E2M1[1:8])) / 2
    x = np.zeros((1, 16), np.float32)
    x[0, :7], x[0, 15] = middles, 6.0  # scale 448 and divisor 448: t is x
    codes, scales = encode_nvfp4(x, np.float32(448))
    assert E4M3[scales[0, 0]] == 448
    words = [int(code) >> shift & 15 for code in codes[0] for shift in (0, 4)]
    assert words[:7] == [0, 2, 2, 4, 4, 6, 6]
