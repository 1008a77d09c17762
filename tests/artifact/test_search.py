"""The searching encoder (spec/artifact.md §2.7)."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.artifact import search
from engine.artifact.formats import GROUPED, Grouped
from engine.artifact.grouped import quantize_absmax
from engine.artifact.search import RATIOS, encode_search, quantize_search
from engine.exits import ArtifactError

Codes = npt.NDArray[np.int8]
Scales = npt.NDArray[np.float16]


def errors(
    x: npt.NDArray[np.float32], weights: npt.NDArray[np.float32], codes: Codes, scales: Scales
) -> npt.NDArray[np.float64]:
    """Weighted squared error of each group, in float64."""
    width = codes.shape[1]
    group = width // scales.shape[1]
    padded = np.zeros((x.shape[0], width))
    padded[:, : x.shape[1]] = x
    importance = np.zeros(width)
    importance[: x.shape[1]] = weights
    difference = padded - codes.astype(np.float64) * np.repeat(scales.astype(np.float64), group, axis=1)
    return np.asarray((importance * difference**2).reshape(x.shape[0], -1, group).sum(axis=2))


def test_the_example_of_the_specification() -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 0] = 8
    ones = np.ones(64, np.float32)
    outcomes = {
        "absmax": (*quantize_absmax("q4_g64_fp16", x), 0x3C92, [7, 1, 1], 1.2807),
        "search": (*quantize_search("q4_g64_fp16", x), 0x3C35, [7, 1, 1], 0.5754),
        "negative": (*quantize_search("q4_g64_fp16", x, negative_scales=True), 0xBC00, [-8, -1, -1], 0.0),
    }
    for codes, scales, word, first, error in outcomes.values():
        assert scales.view(np.uint16).tolist() == [[word, 0]]
        assert codes[0, :3].tolist() == first
        assert not codes[0, 64:].any()
        assert errors(x, ones, codes, scales)[0, 0] == pytest.approx(error, abs=5e-5)


def best_of_all(
    kind: Grouped, x: npt.NDArray[np.float32], w: npt.NDArray[np.float32], negative: bool
) -> tuple[list[int], int]:
    """One group by the letter of §2.7, in plain Python with float32 steps."""

    def coded(scale: np.float16) -> list[np.float32]:
        inverse = np.float32(1 / np.float64(scale))
        return [np.float32(min(max(np.rint(np.float32(v * inverse)), kind.minimum), kind.maximum)) for v in x]

    def error(scale: np.float16, q: list[np.float32]) -> np.float32:
        total = np.float32(0)
        for v, weight, code in zip(x, w, q, strict=True):
            d = np.float32(v - np.float32(np.float32(scale) * code))
            total = np.float32(total + np.float32(weight * np.float32(d * d)))
        return total

    largest = max(abs(v) for v in x)
    extreme = next(v for v in (max(x), min(x)) if abs(v) == largest)
    scale = np.float16(np.float32(np.float64(largest) / kind.maximum))
    scale = scale if scale != 0 else np.float16(2.0**-24)
    q = coded(scale)
    best = error(scale, q), scale, q
    for base in (np.float32(largest / np.float32(kind.maximum)), np.float32(extreme / np.float32(kind.minimum))):
        for ratio in RATIOS:
            s = np.float16(np.float32(np.float64(base) * ratio))
            s = s if s != 0 else np.float16(np.copysign(2.0**-24, base))
            if s < 0 and not negative:
                continue
            q = coded(s)
            e = error(s, q)
            if e < best[0]:
                best = e, s, q
    return [int(code) for code in best[2]], int(best[1].view(np.uint16))


@given(
    format=st.sampled_from(GROUPED),
    seed=st.integers(0, 2**32 - 1),
    negative=st.booleans(),
    scale=st.sampled_from([1e-9, 1e-3, 1.0, 1e3]),
)
@settings(max_examples=20, deadline=None)
def test_groups_are_searched_by_the_letter(format: Grouped, seed: int, negative: bool, scale: float) -> None:
    random = np.random.default_rng(seed)
    x = (random.standard_normal((1, format.group)) * scale).astype(np.float32)
    w = random.random(format.group).astype(np.float32)
    codes, scales = quantize_search(format.name, x, w, negative_scales=negative)
    expected, word = best_of_all(format, x[0], w, negative)
    assert int(scales.view(np.uint16)[0, 0]) == word
    assert codes[0, : format.group].tolist() == expected


@given(
    format=st.sampled_from(GROUPED),
    rows=st.integers(1, 4),
    columns=st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
    negative=st.booleans(),
)
@settings(deadline=None)
def test_the_weighted_error_is_never_above_absmax(
    format: Grouped, rows: int, columns: int, seed: int, negative: bool
) -> None:
    random = np.random.default_rng(seed)
    x = (random.standard_normal((rows, columns)) * 10.0 ** random.integers(-4, 4)).astype(np.float32)
    x[random.random((rows, columns)) < 0.2] = 0
    w = (random.random(columns) ** 4).astype(np.float32)
    ours = errors(x, w, *quantize_search(format.name, x, w, negative_scales=negative))
    absmax = errors(x, w, *quantize_absmax(format.name, x))
    assert (ours <= absmax * (1 + 1e-4) + 1e-30).all()
    assert negative or not (quantize_search(format.name, x, w)[1] < 0).any()


def test_blocks_do_not_change_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).standard_normal((37, 200)).astype(np.float32)
    w = np.random.default_rng(2).random(200).astype(np.float32)
    whole = encode_search("q5_g64_fp16", x, w, negative_scales=True)
    monkeypatch.setattr(search, "BLOCK_WEIGHTS", 1)
    single = encode_search("q5_g64_fp16", x, w, negative_scales=True)
    for a, b in ((whole.base, single.base), (whole.high, single.high), (whole.scales, single.scales)):
        np.testing.assert_array_equal(a, b)


def test_importance_moves_the_error_to_columns_that_matter_less() -> None:
    x = np.random.default_rng(3).standard_normal((64, 128)).astype(np.float32)
    w = np.where(np.arange(128) % 2, 1.0, 1e-4).astype(np.float32)
    ones = np.ones(128, np.float32)
    odd = np.where(np.arange(128) % 2, 1, 0).astype(np.float32)
    plain = errors(x, odd, *quantize_search("q4_g64_fp16", x, ones)).sum()
    weighted = errors(x, odd, *quantize_search("q4_g64_fp16", x, w)).sum()
    assert weighted < 0.97 * plain


@pytest.mark.parametrize(
    ("importance", "message"),
    [
        (np.ones(3, np.float32), r"float32 \[3\]; the matrix asks for float32 \[4\]"),
        (np.ones(4), "float64"),
        (np.array([1, 2, 3, -1], np.float32), "negative or not finite"),
        (np.array([1, 2, 3, np.nan], np.float32), "negative or not finite"),
    ],
)
def test_wrong_importance_is_refused(importance: npt.NDArray[np.float32], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        quantize_search("q4_g64_fp16", np.ones((1, 4), np.float32), importance)
