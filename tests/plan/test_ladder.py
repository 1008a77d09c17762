"""The ladder: what is tried, in which order, what is never changed, and what a refusal says."""

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, strategies
from hypothesis import settings as hypothesis_settings

from engine.exits import ConfigurationError, ExitCode
from engine.plan import (
    FORMATS,
    GIB,
    MIB,
    REFERENCE,
    RUNGS,
    TORCH,
    TORCH_CPU,
    Geometry,
    NoPlanError,
    Plan,
    Request,
    Settings,
    explain,
    ledger,
    make,
    nearest,
    required,
    reservation,
    unsupported,
)
from engine.plan.ladder import Sized
from tests.plan.models import DENSE_27B, DFLASH2_HEAD, MOE_35B, MTP3_HEAD, WEIGHTS_27B, WEIGHTS_35B

RK4V4_MTP = Settings(
    kv_dtype="rk4v4", speculation=MTP3_HEAD, prefill_chunk=2048, prefill_cublas=True, state_fp16=True, vision="overlay"
)


def request(free: int, *, context: int = 262_144, lanes: int = 2, settings: Settings = RK4V4_MTP) -> Request:
    """27B on a described card with `free` bytes."""
    return Request(
        model="qwen38-27b",
        device="cuda:0",
        geometry=DENSE_27B,
        settings=settings,
        weight_bytes=WEIGHTS_27B.resident(settings.speculation),
        free_bytes=free,
        max_context=context,
        lanes=lanes,
    )


def needs(base: Request, context: int, lanes: int) -> int:
    """Free bytes that `base` needs at one combination, to the byte."""
    need = reservation(base.geometry, base.settings, REFERENCE, max_context=context, lanes=lanes)
    return need.minimum_bytes + base.weight_bytes + REFERENCE.context_bytes


def test_the_top_rung_fits_to_the_byte() -> None:
    base = request(0)
    exact = needs(base, 262_144, 2)
    plan = make(replace(base, free_bytes=exact), REFERENCE)
    assert (plan.max_context, plan.lanes, plan.kv_capacity) == (262_144, 2, 262_144)
    assert (plan.left_bytes, plan.rejected, plan.reduced) == (0, (), ())
    stepped = make(replace(base, free_bytes=exact - 1), REFERENCE)
    assert (stepped.max_context, stepped.lanes) == (262_144, 1)


def test_lanes_go_before_rungs() -> None:
    base = request(0, lanes=3)
    plan = make(replace(base, free_bytes=needs(base, 196_608, 2)), REFERENCE)
    tried = [(row.max_context, row.lanes) for row in plan.rejected]
    assert tried == [(262_144, 3), (262_144, 2), (262_144, 1), (196_608, 3)]
    assert (plan.max_context, plan.lanes) == (196_608, 2)
    assert [str(change) for change in plan.reduced] == [
        "--max-context 262144 → 196608",
        "--max-concurrency 3 → 2",
    ]
    for row in plan.rejected:
        assert row.short > 0
        assert row.required == sum(row.ledger.values()) - row.ledger["weights"] - row.ledger["device context"]


@pytest.mark.parametrize("under", [100 * MIB, GIB, 6 * GIB])
def test_free_memory_under_the_top_rung(under: int) -> None:
    """Case V2: a default that boots on the author's card must boot on others, or say how many MiB are missing."""
    base = request(0, lanes=1)
    free = needs(base, 262_144, 1) - under
    if under == 6 * GIB:
        with pytest.raises(NoPlanError, match="This is the lowest rung") as caught:
            make(replace(base, free_bytes=free), REFERENCE)
        last = caught.value.rejected[-1]
        assert [row.max_context for row in caught.value.rejected] == list(RUNGS)
        assert f"{-(-last.short // MIB)} MiB short" in str(caught.value)
        assert caught.value.exit_code == ExitCode.DOES_NOT_FIT
        assert all(row.ledger["state images"] and row.ledger["workspace"] for row in caught.value.rejected)
        return
    plan = make(replace(base, free_bytes=free), REFERENCE)
    assert plan.max_context in RUNGS
    assert needs(base, plan.max_context, 1) <= free
    above = RUNGS[RUNGS.index(plan.max_context) - 1]
    assert needs(base, above, 1) > free
    assert plan.rejected[-1].max_context == above


@pytest.mark.parametrize(
    ("explicit", "tried"),
    [
        ({"max_context"}, [(262_144, 3), (262_144, 2), (262_144, 1)]),
        ({"max_concurrency"}, [(rung, 3) for rung in RUNGS]),
        ({"max_context", "max_concurrency"}, [(262_144, 3)]),
    ],
)
def test_explicit_sizes_are_held_and_refused_with_what_fits(explicit: set[Sized], tried: list[tuple[int, int]]) -> None:
    base = replace(request(0, lanes=3), explicit=frozenset(explicit))
    free = needs(base, 98_304, 1)
    if explicit == {"max_concurrency"}:
        free = needs(base, 81_920, 3) - 1
    with pytest.raises(NoPlanError) as caught:
        make(replace(base, free_bytes=free), REFERENCE)
    assert [(row.max_context, row.lanes) for row in caught.value.rejected] == tried
    near = caught.value.nearest
    assert near is not None
    assert f"What fits: --max-context {near.max_context} --max-concurrency {near.lanes}" in str(caught.value)
    assert "nothing was changed silently" in str(caught.value)
    assert near.left_bytes >= 0
    again = replace(base, free_bytes=free, max_context=near.max_context, lanes=near.lanes)
    assert make(again, REFERENCE).lanes == near.lanes


def test_no_fallback_holds_every_size() -> None:
    base = replace(request(0, lanes=2), fallback=False)
    with pytest.raises(NoPlanError, match="--no-fallback is set") as caught:
        make(replace(base, free_bytes=needs(base, 262_144, 2) - 1), REFERENCE)
    assert len(caught.value.rejected) == 1


def test_below_the_ladder_the_longest_context_is_suggested() -> None:
    base = request(0, lanes=1)
    free = needs(base, 20_032, 1)
    with pytest.raises(NoPlanError, match="What fits: --max-context 20032 --max-concurrency 1"):
        make(replace(base, free_bytes=free), REFERENCE)


def test_weights_alone_do_not_fit() -> None:
    base = request(8 * GIB)
    with pytest.raises(NoPlanError, match=r" 0 bytes are available for runtime capacity.*No context fits") as caught:
        make(base, REFERENCE)
    assert caught.value.nearest is None


def test_automatic_capacity_keeps_one_gib() -> None:
    base = replace(request(0, context=65_536), kv_capacity="auto")
    low = needs(base, 65_536, 2)
    plan = make(replace(base, free_bytes=low + GIB), REFERENCE)
    assert (plan.lanes, plan.kv_capacity, plan.headroom_bytes, plan.left_bytes) == (2, 65_536, GIB, GIB)
    roomy = make(replace(base, free_bytes=low + GIB + 64 * 19_040 * 10 + 5), REFERENCE)
    assert (roomy.kv_capacity, roomy.left_bytes) == (65_536 + 640, GIB + 5)
    full = make(replace(base, free_bytes=low + 20 * GIB), REFERENCE)
    assert full.kv_capacity == 2 * 65_536
    held = replace(base, explicit=frozenset[Sized]({"max_context", "max_concurrency", "kv_capacity"}))
    with pytest.raises(NoPlanError) as minimum:
        make(replace(held, free_bytes=low + GIB - 1), REFERENCE)
    assert "minimum runtime reservation requires" in str(minimum.value)
    assert "1,073,741,824-byte headroom" in str(minimum.value)
    fixed = held.weight_bytes + REFERENCE.context_bytes
    with pytest.raises(NoPlanError) as headroom:
        make(replace(held, free_bytes=fixed + GIB - 1), REFERENCE)
    assert "keeps a headroom of 1,073,741,824 bytes, 1,073,741,823 bytes are available after weights" in str(
        headroom.value
    )


def test_explicit_capacity_is_kept_and_checked() -> None:
    explicit = frozenset[Sized]({"kv_capacity"})
    base = replace(request(30 * GIB, context=131_072), kv_capacity=200_000, explicit=explicit)
    assert make(base, REFERENCE).kv_capacity == 200_000
    # A defaulted context above an explicit pool starts at the pool.
    assert make(replace(base, max_context=262_144), REFERENCE).max_context == 200_000
    held = replace(base, explicit=explicit | {"max_context"})
    for capacity, match in (
        (100_000, "less than one request of --max-context 131072.*use at least 131072"),
        (300_000, "more than 2 lanes of 131072 tokens can use; use at most 262144"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            make(replace(held, kv_capacity=capacity), REFERENCE)
    # Stepping lanes may not strand part of a pool that a person sized.
    tight = replace(base, free_bytes=needs(base, 131_072, 1))
    with pytest.raises(NoPlanError) as caught:
        make(tight, REFERENCE)
    assert {(row.max_context, row.lanes) for row in caught.value.rejected} == {(131_072, 2), (114_688, 2)}


def test_a_profile_sized_pool_follows_the_lanes() -> None:
    base = replace(request(0, context=8192, lanes=8), kv_capacity=16_384)
    full = make(replace(base, free_bytes=30 * GIB), REFERENCE)
    assert (full.lanes, full.kv_capacity, full.reduced) == (8, 16_384, ())
    plan = make(replace(base, free_bytes=needs(base, 8192, 1)), REFERENCE)
    assert (plan.lanes, plan.kv_capacity) == (1, 8192)
    assert [change.name for change in plan.reduced] == ["max_concurrency", "kv_capacity"]


def test_more_positions_than_the_model_has() -> None:
    with pytest.raises(ConfigurationError, match="--max-context 300000: qwen38-27b knows 262144 positions"):
        make(request(30 * GIB, context=300_000), REFERENCE)


def test_as_dict_is_plain() -> None:
    base = request(0, lanes=1)
    record = make(replace(base, free_bytes=needs(base, 196_608, 1), notes=("a note",)), REFERENCE).as_dict()
    assert (record["max_context"], record["lanes"], record["kv_dtype"]) == (196_608, 1, "rk4v4")
    assert record["planned_bytes"] == sum(record["ledger"].values()) == record["free_bytes"]
    assert record["rejected"][0]["reason"].startswith("runtime reservation requires")
    assert record["reduced"] == [{"name": "max_context", "wanted": 262_144, "got": 196_608}]
    assert record["notes"] == ["a note"]


def test_features_that_this_version_lacks_are_named() -> None:
    wants = required(RK4V4_MTP, cuda=True, packed_weights=True)
    plan = make(replace(request(30 * GIB), requires=wants), REFERENCE)
    assert unsupported(plan) == (
        "kv:rk4v4",
        "speculation:mtp",
        "prefill:cublas",
        "vision:overlay",
        "weights:packed",
    )
    assert "--kv-dtype bf16" in explain(unsupported(plan))
    plain = replace(plan, requires=required(Settings(), cuda=False, packed_weights=False))
    assert unsupported(plain) == ()


free_bytes = strategies.integers(min_value=0, max_value=30 * GIB)
sized: strategies.SearchStrategy[frozenset[Sized]] = strategies.frozensets(
    strategies.sampled_from(("max_context", "max_concurrency", "kv_capacity"))
)
capacities: strategies.SearchStrategy[int | Literal["auto"] | None] = strategies.one_of(
    strategies.none(), strategies.just("auto"), strategies.integers(min_value=1, max_value=600_000)
)
kv_dtypes = strategies.sampled_from(sorted(FORMATS))


def _order(plan: Plan | None) -> tuple[int, int]:
    return (0, 0) if plan is None else (plan.max_context, plan.lanes)


def _plan(asked: Request) -> Plan | None:
    try:
        return make(asked, REFERENCE)
    except NoPlanError:
        return None


@hypothesis_settings(deadline=None, max_examples=60)
@given(free=free_bytes, more=free_bytes, lanes=strategies.integers(1, 8), kv_dtype=kv_dtypes)
def test_more_memory_never_gives_a_smaller_plan(free: int, more: int, lanes: int, kv_dtype: str) -> None:
    base = request(free, lanes=lanes, settings=replace(RK4V4_MTP, kv_dtype=kv_dtype))
    assert _order(_plan(base)) <= _order(_plan(replace(base, free_bytes=free + more)))


@hypothesis_settings(deadline=None, max_examples=80)
@given(
    free=free_bytes,
    lanes=strategies.integers(1, 8),
    context=strategies.integers(1, 262_144),
    capacity=capacities,
    explicit=sized,
    fallback=strategies.booleans(),
)
def test_a_plan_fits_its_budget_and_explicit_values_never_change(
    free: int,
    lanes: int,
    context: int,
    capacity: int | Literal["auto"] | None,
    explicit: frozenset[Sized],
    fallback: bool,
) -> None:
    base = replace(
        request(free, context=context, lanes=lanes), kv_capacity=capacity, explicit=explicit, fallback=fallback
    )
    try:
        plan = make(base, REFERENCE)
    except ConfigurationError:
        assert isinstance(capacity, int)
        return
    except NoPlanError as error:
        near, tried = error.nearest, error.rejected
    else:
        _check_plan(plan, base)
        return
    assert near == nearest(base, REFERENCE)
    assert all(row.short > 0 for row in tried)


def _check_plan(plan: Plan, base: Request) -> None:
    again = ledger(DENSE_27B, RK4V4_MTP, REFERENCE, max_context=plan.max_context, lanes=plan.lanes, pages=plan.pages)
    assert plan.ledger == {"weights": base.weight_bytes, "device context": REFERENCE.context_bytes} | again
    assert plan.planned_bytes + plan.headroom_bytes <= base.free_bytes
    assert plan.kv_capacity >= plan.max_context
    assert plan.lanes <= plan.pages
    explicit, capacity = base.explicit, base.kv_capacity
    held = explicit if base.fallback else frozenset[Sized](("max_context", "max_concurrency"))
    if "max_context" in held:
        assert plan.max_context == base.max_context
    if "max_concurrency" in held:
        assert plan.lanes == base.lanes
    if "kv_capacity" in explicit and isinstance(capacity, int):
        assert plan.pages == -(-capacity // 64)
    got = {"max_context": plan.max_context, "max_concurrency": plan.lanes, "kv_capacity": plan.kv_capacity}
    assert all(got[change.name] == change.got < change.wanted for change in plan.reduced)


@hypothesis_settings(deadline=None, max_examples=60)
@given(
    width=strategies.integers(1, 512),
    context=strategies.integers(1, 262_144),
    heads=strategies.integers(1, 8),
    lanes=strategies.integers(1, 8),
)
def test_a_smaller_format_never_takes_more(width: int, context: int, heads: int, lanes: int) -> None:
    """Case L5, on any shape: fewer bits a value, never more bytes."""
    geometry = replace(DENSE_27B, key_value_heads=heads, head_dim=16 * width)
    sizes = {
        name: reservation(geometry, Settings(kv_dtype=name), TORCH, max_context=context, lanes=lanes).minimum_bytes
        for name in FORMATS
    }
    chains = (("rk4v4", "rk8v4", "int8", "bf16"), ("nvfp4", "k8v4", "fp8", "bf16"), ("fp8", "int8"))
    for chain in chains:
        assert [sizes[name] for name in chain] == sorted(sizes[name] for name in chain)


def test_our_workspace_is_near_the_published_one() -> None:
    """The torch constants are a projection; they must not promise less memory than a mature engine needs, by much."""
    for geometry in (DENSE_27B, MOE_35B):
        for chunk in (512, 1024):
            settings = Settings(prefill_chunk=chunk)
            ours, theirs = (record.workspace(geometry, settings, 8192) for record in (TORCH, REFERENCE))
            assert 0.9 < ours / theirs < 1.3


def test_our_engine_charges_what_it_keeps() -> None:
    """Plain decoding: one state image a lane, no graphs, no records; attention's mask grows with context on the CPU."""
    rows = ledger(DENSE_27B, Settings(), TORCH, max_context=8192, lanes=4, pages=128)
    assert set(rows) == {
        "KV pages", "block tables", "state images", "prefill hidden", "round logits", "token counts",
        "round scalars", "workspace",
    }  # fmt: skip
    assert rows["state images"] == 4 * (153_954_304 - 10_240)
    assert rows["round logits"] == 4 * 3 * 248_320 * 4
    on_cpu = [
        ledger(DENSE_27B, Settings(), TORCH_CPU, max_context=context, lanes=1, pages=context // 64)["workspace"]
        for context in (8192, 65_536)
    ]
    assert on_cpu[0] < on_cpu[1]


def test_speculation_is_charged_whole() -> None:
    """Case V4: every backend has its fixed part and its part a token, in weights and in the reservation."""
    for geometry, weights, speculation in (
        (DENSE_27B, WEIGHTS_27B, DFLASH2_HEAD),
        (DENSE_27B, WEIGHTS_27B, MTP3_HEAD),
        (MOE_35B, WEIGHTS_35B, MTP3_HEAD),
    ):
        assert weights.resident(speculation) > weights.text + (weights.draft_head or 0)
        settings = Settings(speculation=speculation)
        short, long = (
            ledger(geometry, settings, TORCH, max_context=context, lanes=1, pages=context // 64)
            for context in (8192, 16_384)
        )
        assert "replay records" in short
        assert short["graphs"] == long["graphs"] == 384 * MIB
        if speculation.backend == "mtp":
            assert long["MTP KV pages"] > short["MTP KV pages"]
        else:
            assert "drafter features" in long


@pytest.mark.parametrize(
    ("hidden", "chunk", "context", "peak_mib"),
    [(256, 1024, 8192, 75.3), (512, 1024, 1024, 64.8), (512, 1024, 8192, 120.2), (512, 512, 32_768, 396.4)],
)
def test_host_workspace_covers_measured_peaks(hidden: int, chunk: int, context: int, peak_mib: float) -> None:
    """Growth of resident memory while plain torch prefilled the last chunk of a context (x86-64, torch 2.13)."""
    geometry = Geometry(
        layers=4,
        attention_layers=1,
        hidden_size=hidden,
        vocabulary_rows=4096,
        token_count=4096,
        query_heads=hidden // 32,
        key_value_heads=2,
        head_dim=64,
        feed_forward_size=3 * hidden,
        experts_per_token=0,
        linear_key_heads=hidden // 64,
        linear_key_dim=32,
        linear_value_heads=hidden // 32,
        linear_value_dim=32,
        conv_taps=4,
        max_positions=65_536,
    )
    planned = TORCH_CPU.workspace(geometry, Settings(prefill_chunk=chunk), context) / MIB
    assert peak_mib <= planned < 2 * peak_mib
