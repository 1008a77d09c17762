"""The published figures of spec/memory-and-fit.md §2.2, §2.3 and §3, reproduced with the reference constants."""

import dataclasses
import itertools
from dataclasses import replace

import pytest

from engine.exits import ConfigurationError
from engine.plan import (
    GIB,
    MIB,
    PLAIN,
    REFERENCE,
    Geometry,
    NoPlanError,
    Request,
    Settings,
    Speculation,
    Weights,
    key_value_bytes,
    kv_format,
    ledger,
    make,
    reservation,
)
from engine.plan.calculator import Calculator
from engine.plan.geometry import replay_record_bytes, state_image_bytes
from tests.plan.models import (
    DENSE_27B,
    DFLASH,
    DFLASH2,
    DFLASH2_HEAD,
    EMBEDDING_Q4,
    HEAD_Q6,
    MOE_35B,
    MTP3,
    TUNED_MTP,
    WEIGHTS_27B,
    WEIGHTS_35B,
    gib,
)

TUNED_MTP_FP16 = replace(TUNED_MTP, state_fp16=True)
GROWING = ("KV pages", "MTP KV pages", "drafter KV pages", "block tables", "workspace", "graphs", "vision bridge")


def runtime(geometry: Geometry, settings: Settings, context: int, lanes: int = 1) -> int:
    """Bytes of the reservation with a pool of one context."""
    return reservation(geometry, settings, REFERENCE, max_context=context, lanes=lanes).minimum_bytes


def test_the_exact_reservation() -> None:
    settings = Settings(kv_dtype="int8", device_state_slots=0)
    rows = ledger(DENSE_27B, settings, REFERENCE, max_context=262_144, lanes=1, pages=4096)
    assert rows["KV pages"] == 262_144 * 33_792
    assert rows["block tables"] == 16_384
    assert rows["workspace"] == 159_981_568
    assert rows["graphs"] == 12_582_912
    assert sum(rows.values()) == 9_197_389_568


LOGITS, COUNTS = 248_320 * 2, 248_077 * 4
NONE_27B = 153_954_304 + 5120 * 1024 * 2 + 2 * LOGITS + COUNTS + 13_004
NONE_35B = 64_393_216 + 2048 * 1024 * 2 + 2 * LOGITS + COUNTS + 6_860


@pytest.mark.parametrize(
    ("geometry", "speculation", "published", "decomposed"),
    [
        (DENSE_27B, PLAIN, 166_438_656, NONE_27B),
        (DENSE_27B, MTP3, 175_693_056, NONE_27B + 4 * 1_787_904 + 2_102_784),
        (
            DENSE_27B,
            DFLASH2,
            279_090_432,
            NONE_27B + 41_943_040 + 52_428_800 + 409_600 + 8 * 1_787_904 + 3_567_104,
        ),
        (MOE_35B, PLAIN, 70_579_968, NONE_35B),
        (MOE_35B, MTP3, 76_086_528, NONE_35B + 4 * 867_840 + 2_035_200),
        (MOE_35B, DFLASH, 193_136_896, NONE_35B + 83_886_080 + 33_554_432 + 131_072 + 4 * 867_840 + 1_513_984),
    ],
)
def test_fixed_parts(geometry: Geometry, speculation: Speculation, published: int, decomposed: int) -> None:
    settings = Settings(kv_dtype="int8", speculation=speculation, device_state_slots=0)
    rows = ledger(geometry, settings, REFERENCE, max_context=8192, lanes=1, pages=128)
    fixed = {name: size for name, size in rows.items() if name not in GROWING}
    assert sum(fixed.values()) == published == decomposed
    rings = speculation.drafter.ring_bytes if speculation.drafter else 0
    assert fixed["state images"] == state_image_bytes(geometry, fp16=False, ring_bytes=rings)
    assert fixed["prefill hidden"] == geometry.hidden_size * 1024 * 2
    assert fixed["token counts"] == COUNTS
    if speculation.drafts:
        assert fixed["replay records"] == (speculation.drafts + 1) * replay_record_bytes(geometry)
    if speculation.drafter:
        pending = {"dflash2": 409_600, "dflash": 131_072}[speculation.backend]
        width = {"dflash2": 52_428_800, "dflash": 33_554_432}[speculation.backend]
        assert fixed["drafter features"] == width + pending


@pytest.mark.parametrize(
    ("geometry", "speculation", "context", "graphs", "table", "ratio"),
    [
        (DENSE_27B, PLAIN, 8192, 12_582_912, 0.0625, 1),
        (DENSE_27B, MTP3, 8192, 90_177_536, 0.125, 1.062988281),
        (DENSE_27B, DFLASH2, 8192, 301_989_888, 0.0625, 1),
        (DENSE_27B, DFLASH2, 8256, 402_653_184, 0.0625, 1),
        (MOE_35B, PLAIN, 8192, 12_582_912, 0.0625, 1),
        (MOE_35B, MTP3, 8192, 90_177_536, 0.125, 1.10078125),
        (MOE_35B, DFLASH, 8192, 167_772_160, 0.125, 1),
    ],
)
def test_calculator_rows(
    geometry: Geometry, speculation: Speculation, context: int, graphs: int, table: float, ratio: float
) -> None:
    """Graph bytes, table bytes a token, and the KV ratio, which was measured over a run of 128 pages."""
    settings = Settings(kv_dtype="int8", speculation=speculation, device_state_slots=0)
    rows = ledger(geometry, settings, REFERENCE, max_context=context, lanes=1, pages=context // 64)
    assert rows["graphs"] == graphs
    assert rows["block tables"] / context == table
    assert (rows["KV pages"] + rows.get("MTP KV pages", 0)) / rows["KV pages"] == pytest.approx(ratio, abs=1e-9)
    drafter = speculation.drafter
    extra = drafter.page_token_bytes if drafter else 0
    assert rows.get("drafter KV pages", 0) == extra * context


def test_graph_allowances_below_4096_keys() -> None:
    def graphs(drafts: int, context: int, lanes: int = 1) -> int:
        return REFERENCE.graphs(Settings(speculation=Speculation("mtp", drafts)), context, lanes) // MIB

    assert [graphs(3, 4096), graphs(2, 4096), graphs(3, 4097), graphs(2, 4097)] == [64, 16, 86, 86]
    assert graphs(3, 8192, lanes=8) == 8 * 86


@pytest.mark.parametrize(
    ("geometry", "chunk", "mib"), [(DENSE_27B, 4096, 661.2), (DENSE_27B, 2048, 543.0), (MOE_35B, 4096, 292.2)]
)
def test_cublas_workspace(geometry: Geometry, chunk: int, mib: float) -> None:
    settings = Settings(prefill_chunk=chunk, prefill_cublas=True)
    assert REFERENCE.workspace(geometry, settings, 262_144) / MIB == pytest.approx(mib, abs=0.05)


def test_reference_constants_know_the_published_models_only() -> None:
    small = replace(DENSE_27B, hidden_size=256)
    with pytest.raises(ConfigurationError, match="hidden sizes"):
        ledger(small, Settings(), REFERENCE, max_context=64, lanes=1, pages=1)
    with pytest.raises(ConfigurationError, match="no figure for dflash"):
        ledger(DENSE_27B, Settings(speculation=DFLASH), REFERENCE, max_context=64, lanes=1, pages=1)


@pytest.mark.parametrize(
    ("settings", "context", "lanes", "published"),
    [
        (TUNED_MTP, 49_152, 1, 1.82),
        (TUNED_MTP, 98_304, 1, 3.09),
        (TUNED_MTP, 131_072, 1, 3.94),
        (TUNED_MTP, 131_072, 2, 4.32),
        (TUNED_MTP, 163_840, 1, 4.78),
        (TUNED_MTP_FP16, 131_072, 1, 3.80),
        (TUNED_MTP_FP16, 163_840, 1, 4.64),
        (TUNED_MTP_FP16, 196_608, 1, 5.49),
        (TUNED_MTP_FP16, 229_376, 1, 6.34),
        (replace(TUNED_MTP, kv_dtype="int8", vision="off"), 65_536, 1, 2.73),
    ],
)
def test_runtime_of_27b_to_the_published_decimals(
    settings: Settings, context: int, lanes: int, published: float
) -> None:
    assert round(gib(runtime(DENSE_27B, settings, context, lanes)), 2) == published


@pytest.mark.parametrize(
    ("context", "lanes", "published"), [(262_144, 1, 2.46), (262_144, 2, 2.67), (114_688, 1, 1.22), (131_072, 2, 1.57)]
)
def test_runtime_of_35b_at_chunk_512(context: int, lanes: int, published: float) -> None:
    settings = replace(TUNED_MTP, prefill_chunk=512)
    assert gib(runtime(MOE_35B, settings, context, lanes)) == pytest.approx(published, abs=0.02)


def test_regression_of_27b() -> None:
    """Published: 0.553 GiB and 27,719 B a token; each lane 0.38 GiB (FP32), 0.24 GiB (FP16)."""
    one, two = (runtime(DENSE_27B, TUNED_MTP, context) for context in (65_536, 131_072))
    slope = (two - one) / 65_536
    assert slope == pytest.approx(27_744.125, abs=1e-9)
    assert gib(one - round(slope * 65_536)) == pytest.approx(0.553, abs=0.005)
    lanes = [
        gib(runtime(DENSE_27B, settings, 131_072, 2) - runtime(DENSE_27B, settings, 131_072, 1))
        for settings in (TUNED_MTP, TUNED_MTP_FP16)
    ]
    assert [round(lane, 2) for lane in lanes] == [0.38, 0.24]


def test_headless_27b_leaves_the_published_bytes() -> None:
    """About 7.06 GiB with MTP3 and draft head, 7.69 with a Q4 embedding."""
    weights = WEIGHTS_27B.resident(TUNED_MTP.speculation)
    left = 24 * GIB - REFERENCE.context_bytes - weights
    assert gib(left) == pytest.approx(7.06, abs=0.01)
    assert gib(left + EMBEDDING_Q4) == pytest.approx(7.69, abs=0.01)


def start(
    geometry: Geometry, settings: Settings, weights: Weights, context: int, free_after_weights: int, lanes: int = 1
) -> int:
    """Bytes left after an explicit start, as the project measured them. Raises NoPlanError when it is refused."""
    resident = weights.resident(settings.speculation)
    plan = make(
        Request(
            model="published",
            device="cuda:0",
            geometry=geometry,
            settings=settings,
            weight_bytes=resident,
            free_bytes=free_after_weights + resident + REFERENCE.context_bytes,
            max_context=context,
            lanes=lanes,
            kv_capacity=context,
            explicit=frozenset({"max_context", "max_concurrency", "kv_capacity"}),
        ),
        REFERENCE,
    )
    return plan.left_bytes


# Measured starts of 27B beside a desktop (§2.3). Runtime plus free after startup is 5.64 GiB in every row without
# flags: that is what was free after the weights. The Q4 embedding adds 644.1 MiB to it, the Q6 head 341.0 MiB.
DESKTOP = round(5.64 * GIB)
WITH_EMBEDDING_Q4 = DESKTOP + EMBEDDING_Q4
WITH_BOTH = WITH_EMBEDDING_Q4 + HEAD_Q6


@pytest.mark.parametrize(
    ("context", "free", "settings", "left_gib"),
    [
        (131_072, DESKTOP, TUNED_MTP, 1.70),
        (163_840, DESKTOP, TUNED_MTP, 873 / 1024),
        (196_608, DESKTOP, TUNED_MTP, 0.0),
        (131_072, WITH_EMBEDDING_Q4, TUNED_MTP_FP16, 2.47),
        (163_840, WITH_EMBEDDING_Q4, TUNED_MTP_FP16, 1.63),
        (196_608, WITH_EMBEDDING_Q4, TUNED_MTP_FP16, 798 / 1024),
        (131_072, WITH_BOTH, TUNED_MTP_FP16, 2.79),
        (163_840, WITH_BOTH, TUNED_MTP_FP16, 1.96),
        (196_608, WITH_BOTH, TUNED_MTP_FP16, 1.11),
        (229_376, WITH_BOTH, TUNED_MTP_FP16, 276 / 1024),
    ],
)
def test_measured_starts_of_27b(context: int, free: int, settings: Settings, left_gib: float) -> None:
    assert gib(start(DENSE_27B, settings, WEIGHTS_27B, context, free)) == pytest.approx(left_gib, abs=0.02)


@pytest.mark.parametrize(
    ("context", "free", "settings"),
    [
        (229_376, DESKTOP, TUNED_MTP),
        (245_760, DESKTOP, TUNED_MTP),
        (245_760, WITH_EMBEDDING_Q4, TUNED_MTP_FP16),
    ],
)
def test_refused_starts_of_27b(context: int, free: int, settings: Settings) -> None:
    with pytest.raises(NoPlanError, match="runtime reservation requires"):
        start(DENSE_27B, settings, WEIGHTS_27B, context, free)


@pytest.mark.parametrize(
    ("context", "free", "published_runtime", "short_gib"),
    [(229_376, WITH_EMBEDDING_Q4, 6.34, 0.067), (245_760, WITH_BOTH, None, 0.157)],
)
def test_the_two_starts_that_took_more_than_was_free(
    context: int, free: int, published_runtime: float | None, short_gib: float
) -> None:
    """Two rows say "starts, 0 free" where the other rows of their column prove that less was free than they took.

    The desktop gave way: its driver moves other programs' memory out when a program asks for more. Free memory before
    those two starts is therefore not what it was for the others and is not published. What can be checked is the
    runtime figure, and that the excess is small.
    """
    need = gib(runtime(DENSE_27B, TUNED_MTP_FP16, context))
    if published_runtime is not None:
        assert round(need, 2) == published_runtime
    assert need - gib(free) == pytest.approx(short_gib, abs=0.01)


# 35B, MTP3 with draft head, rk8v4: free MiB before and after the flags. 147,456 tokens and 254 MiB fix what was free
# after the weights. The flags add 412 MiB, which is FP16 state for two images (60) and Q4 MTP experts (344).
FREE_35B = runtime(MOE_35B, replace(TUNED_MTP, prefill_chunk=512), 147_456) + 254 * MIB


@pytest.mark.parametrize(
    ("context", "before", "after"),
    [(114_688, 535, 947), (147_456, 254, 666), (163_840, 107, 526), (196_608, None, 246)],
)
def test_measured_starts_of_35b(context: int, before: int | None, after: int) -> None:
    settings = replace(TUNED_MTP, prefill_chunk=512)
    if before is None:
        with pytest.raises(NoPlanError):
            start(MOE_35B, settings, WEIGHTS_35B, context, FREE_35B)
    else:
        left = start(MOE_35B, settings, WEIGHTS_35B, context, FREE_35B)
        assert gib(left) == pytest.approx(before / 1024, abs=0.02)
    saved = WEIGHTS_35B.mtp_experts_q4_saving
    flagged = replace(settings, state_fp16=True)
    left = start(MOE_35B, flagged, WEIGHTS_35B, context, FREE_35B + saved)
    assert gib(left) == pytest.approx(after / 1024, abs=0.02)


DFLASH2_TUNED = Settings(
    kv_dtype="rk4v4",
    speculation=DFLASH2_HEAD,
    prefill_chunk=4096,
    prefill_cublas=True,
    state_fp16=True,
    vision="overlay",
)


def test_dflash2_at_the_full_context() -> None:
    """262,144 needs more than the 5.00 GB that was free. The project says 6.45 GB; 0.13 GB of that is unexplained, so
    the rows around 180K of that day, which lie inside the unexplained part, are not checked. Nor is the row of the
    newest artifact: 188,416 with 721 MiB left and 196,608 (140 MiB more) refused contradict each other.
    """
    assert runtime(DENSE_27B, DFLASH2_TUNED, 262_144) / 1e9 == pytest.approx(6.32, abs=0.005)
    with pytest.raises(NoPlanError):
        start(DENSE_27B, DFLASH2_TUNED, WEIGHTS_27B, 262_144, 5_000_000_000)
    assert start(DENSE_27B, DFLASH2_TUNED, WEIGHTS_27B, 180_224, 5_000_000_000) > 0


@pytest.mark.parametrize(
    ("kv_dtype", "automatic", "explicit"),
    [("int8", 147_456, 180_224), ("rk8v4", 196_608, 237_568), ("bf16", 73_728, 92_160)],
)
def test_largest_context_with_overlay_vision(kv_dtype: str, automatic: int, explicit: int) -> None:
    """One free size explains all six figures, which were searched in steps of 8,192.

    Rows with the tower resident need its workspace, which is not published. Peak use under load, and the rows that
    give "used of 24.5", include programs of unpublished size: no free memory can be derived from them.
    """
    free = round(6.70 * GIB)
    settings = replace(TUNED_MTP, kv_dtype=kv_dtype)
    for largest, headroom in ((automatic, GIB), (explicit, 0)):
        assert runtime(DENSE_27B, settings, largest) + headroom <= free
        assert runtime(DENSE_27B, settings, largest + 8192) + headroom > free


def test_reservations_are_affine_in_pages() -> None:
    for geometry, speculation in ((DENSE_27B, MTP3), (DENSE_27B, DFLASH2), (MOE_35B, DFLASH), (MOE_35B, PLAIN)):
        settings = Settings(kv_dtype="rk4v4", speculation=speculation)
        need = reservation(geometry, settings, REFERENCE, max_context=8192, lanes=4)
        assert (need.minimum_pages, need.maximum_pages) == (128, 512)
        for pages in (128, 129, 300, 512):
            rows = ledger(geometry, settings, REFERENCE, max_context=8192, lanes=4, pages=pages)
            assert need.bytes_for(pages) == sum(rows.values())


def test_a_reservation_that_is_not_affine_is_an_error_of_ours() -> None:
    calls = itertools.count()
    broken = dataclasses.replace(REFERENCE, scalars=lambda geometry, settings: next(calls) ** 2)
    with pytest.raises(AssertionError, match="not affine"):
        reservation(DENSE_27B, Settings(), broken, max_context=8192, lanes=4)


def test_trade_rates() -> None:
    """The MTP layer and draft head of 35B are worth 185,748 tokens of rk4v4, or 127,474 of rk8v4."""
    tokens = [round(992 * MIB / key_value_bytes(MOE_35B, kv_format(name))) for name in ("rk4v4", "rk8v4")]
    assert tokens == [185_748, 127_474]


def test_calculator_verdicts_and_longest_context() -> None:
    calculator = Calculator(
        geometry=DENSE_27B,
        settings=Settings(kv_dtype="int8", speculation=MTP3),
        weight_bytes=WEIGHTS_27B.resident(MTP3),
        reserve_bytes=307 * MIB,
    )
    longest = calculator.longest_context()
    assert longest % 64 == 0
    assert calculator.left(longest) >= 0 > calculator.left(longest + 64)
    assert calculator.verdict(longest) == "tight"
    assert calculator.verdict(longest + 64) == "does not fit"
    assert calculator.verdict(8192) == "fits"
    by_hand = 24 * GIB - 307 * MIB - WEIGHTS_27B.resident(MTP3) - 159_981_568 - 90_177_536 - 175_693_056
    # One extra MTP page beside the pool; 0.125 B of tables a token.
    assert longest // 64 == int((by_hand - 2112 * 64) / (64 * (35_904 + 0.125)))


def test_the_graph_step_is_re_evaluated() -> None:
    """With 96 MiB more graphs beyond 8,192 tokens, a card can be too small for 8,256 and hold 8,192."""
    settings = Settings(kv_dtype="bf16", speculation=DFLASH2)
    probe = Calculator(geometry=DENSE_27B, settings=settings, weight_bytes=0)
    card = 24 * GIB - probe.left(8192)
    small = replace(probe, card_bytes=card)
    assert small.longest_context() == 8192
    assert replace(probe, card_bytes=card + 97 * MIB).longest_context() == 8192
    assert replace(probe, card_bytes=card + 101 * MIB).longest_context() > 8192
    assert replace(probe, card_bytes=MIB).longest_context() == 0
    assert Calculator(geometry=MOE_35B, settings=Settings(), weight_bytes=0).longest_context() == 262_144
