"""From settings and a described machine to a device and a plan."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, strategies
from hypothesis import settings as hypothesis_settings

from appliance import sizing
from appliance.machine import Machine
from appliance.model_facts import ModelFacts, facts, facts_of_catalog
from appliance.profiles import DEFAULT_PROFILES, apply, load_profile
from appliance.settings import from_resolved
from appliance.sizing import choose_device
from downloader.catalog import DEFAULT_CATALOG
from engine.exits import ConfigurationError, NoDeviceError
from engine.options import resolve
from engine.plan import GIB, MIB, RUNGS, NoPlanError, Plan, Speculation, unsupported
from tests.appliance.described import card_3090, machine
from tests.appliance.tiny import write_tiny
from tests.plan.models import DENSE_27B, MOE_35B, WEIGHTS_27B, WEIGHTS_35B, gib

MODELS = ("qwen38-27b", "qwen36-27b", "qwen36-35b-a3b")


def make_plan(model: str, found: Machine, environ: dict[str, str] | None = None, **flags: str) -> Plan:
    """The plan for any engine."""
    resolved = resolve({**flags, "model": model}, environ or {})
    return sizing.make_plan(from_resolved(resolved), found, supported=None)


def plan_of(model: str, taken_gib: float = 0.0, **flags: str) -> Plan:
    """The plan on a 3090 of which others hold `taken_gib`."""
    return make_plan(model, machine(card_3090(taken_gib)), {}, **flags)


def model_facts(*, small: bool) -> ModelFacts:
    known = facts_of_catalog("qwen38-27b", DEFAULT_CATALOG)
    return dataclasses.replace(known, name="tiny", file_bytes=GIB) if small else known


def test_the_catalog_describes_the_models_of_the_specification() -> None:
    known = {name: facts_of_catalog(name, DEFAULT_CATALOG) for name in MODELS}
    assert known["qwen38-27b"].geometry == known["qwen36-27b"].geometry == DENSE_27B
    assert known["qwen36-35b-a3b"].geometry == MOE_35B
    assert known["qwen36-35b-a3b"].weights == WEIGHTS_35B
    # Search artifact: 14.56 GiB of text; the bundles are those of the upstream file.
    search = known["qwen38-27b"].weights
    assert round(gib(search.text), 2) == 14.56
    assert dataclasses.replace(search, text=WEIGHTS_27B.text) == WEIGHTS_27B
    for name in MODELS:
        weights = known[name].weights
        bundles = (weights.text, weights.mtp, weights.dflash, weights.dflash2, weights.draft_head)
        inside = sum(size for size in bundles if size is not None)
        # What is left of the file is the vision tower (282 or 268 MiB), resources and directory.
        assert 265 * MIB < known[name].file_bytes - inside < 300 * MIB


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("taken", [0.0, 1.3, 1.8, 3.0, 6.0])
def test_a_3090_with_memory_taken_by_others(model: str, taken: float) -> None:
    """Cases V2 and V6: a plan that fits what is free, or a refusal with the shortfall."""
    free = card_3090(taken).free_bytes
    try:
        plan = plan_of(model, taken)
    except NoPlanError as error:
        message, rejected = str(error), error.rejected
    else:
        assert plan.free_bytes == free
        assert plan.planned_bytes <= free
        assert plan.max_context in RUNGS
        for row in plan.rejected:
            assert row.required > row.available
            assert (row.max_context, row.lanes) > (plan.max_context, plan.lanes)
        assert (taken > 0) == any("plasmashell 4242" in note for note in plan.notes)
        return
    assert rejected[-1].max_context == RUNGS[-1]
    assert f"{-(-rejected[-1].short // MIB)} MiB short" in message
    assert "runtime reservation requires" in message


def test_which_rung_a_desktop_leaves() -> None:
    chosen = {taken: plan_of("qwen38-27b", taken).max_context for taken in (0.0, 1.3, 1.8)}
    assert chosen == {0.0: 262_144, 1.3: 196_608, 1.8: 131_072}
    small = plan_of("qwen38-27b", 1.3)
    assert [str(change) for change in small.reduced] == ["--max-context 262144 → 196608"]
    assert small.kv_capacity == 196_608
    with pytest.raises(NoPlanError):
        plan_of("qwen36-35b-a3b", 6.0)


@hypothesis_settings(deadline=None, max_examples=30)
@given(taken=strategies.floats(0, 8), less=strategies.floats(0, 8), model=strategies.sampled_from(MODELS))
def test_less_foreign_memory_never_gives_a_smaller_plan(taken: float, less: float, model: str) -> None:
    def order(gib_taken: float) -> tuple[int, int]:
        try:
            plan = plan_of(model, gib_taken)
        except NoPlanError:
            return 0, 0
        return plan.max_context, plan.lanes

    assert order(taken) <= order(max(0.0, taken - less))


def test_explicit_sizes_are_refused_loudly() -> None:
    with pytest.raises(NoPlanError) as caught:
        plan_of("qwen38-27b", 3.0, max_context="262144")
    message = str(caught.value)
    assert "--max-context is set" in message
    assert "runtime reservation requires" in message
    near = caught.value.nearest
    assert near is not None
    assert plan_of("qwen38-27b", 3.0, max_context=str(near.max_context)).max_context == near.max_context
    with pytest.raises(NoPlanError):
        make_plan("qwen38-27b", machine(card_3090(3.0)), {"NINFER_CONTEXT": "262144"})


def test_what_a_tuned_plan_still_lacks_is_listed() -> None:
    plan = plan_of("qwen38-27b")
    assert plan.settings.speculation == Speculation("dflash2", 7, draft_head=True)
    assert set(unsupported(plan)) == {
        "kv:rk4v4", "speculation:dflash2", "prefill:cublas", "vision:overlay", "weights:packed",
    }  # fmt: skip
    assert plan.requires[1] == "device:cuda"
    experts = plan_of("qwen36-35b-a3b")
    assert "weights:mtp-experts-q4" in unsupported(experts)
    assert experts.ledger["weights"] == 21_038_469_632 + 897_934_336 - 360_710_144 + 143_130_624


def test_a_start_is_refused_while_the_engine_lacks_what_the_plan_needs(tmp_path: Path) -> None:
    box = from_resolved(resolve({"model": "qwen38-27b"}, {}))
    with pytest.raises(ConfigurationError, match=r"profile tuned: .* lacks kv:rk4v4, .*what works: --kv-dtype bf16"):
        sizing.make_plan(box, machine(card_3090()))
    tiny = from_resolved(resolve({"model": str(write_tiny(tmp_path / "tiny.ninfer"))}, {}))
    assert sizing.make_plan(tiny, machine()).device == "cpu"


def test_the_card_with_most_free_memory_is_chosen_and_named() -> None:
    busy, idle = card_3090(6.0), card_3090(0.0, index=1)
    plan = make_plan("qwen38-27b", machine(busy, idle))
    assert plan.device == "cuda:1"
    assert any("chose NVIDIA GeForce RTX 3090 (cuda:1" in note and "cuda:0" in note for note in plan.notes)
    device = choose_device(machine(busy, idle), "0", model_facts(small=False))
    assert (device.name, device.free_bytes) == ("cuda:0", busy.free_bytes)
    with pytest.raises(NoDeviceError, match="--device 2: there is no such card"):
        choose_device(machine(busy, idle), "2", model_facts(small=False))
    with pytest.raises(ConfigurationError, match="must be auto, cpu"):
        choose_device(machine(busy), "gpu", model_facts(small=False))


def test_an_old_card_is_refused_with_its_capability() -> None:
    import msgspec

    turing = msgspec.structs.replace(card_3090(), name="NVIDIA GeForce RTX 2080 Ti", compute_capability=(7, 5))
    for asked in ("auto", "0"):
        with pytest.raises(NoDeviceError, match=r"RTX 2080 Ti has compute capability 7\.5; 8\.0 or newer"):
            choose_device(machine(turing), asked, model_facts(small=False))
    host = choose_device(machine(turing), "auto", model_facts(small=True))
    assert host.name == "cpu"
    assert "running on the CPU: NVIDIA GeForce RTX 2080 Ti" in host.notes[0]
    mixed = machine(turing, card_3090(index=1))
    assert choose_device(mixed, "auto", model_facts(small=False)).name == "cuda:1"


def test_a_box_with_a_card_never_serves_from_the_cpu_silently() -> None:
    """Case C1."""
    broken = machine(fault="no NVIDIA driver is loaded; install it", pci=1)
    with pytest.raises(NoDeviceError) as caught:
        choose_device(broken, "auto", model_facts(small=False))
    assert "there is an NVIDIA card at 0000:01:00.0, but no NVIDIA driver is loaded" in str(caught.value)
    host = choose_device(broken, "auto", model_facts(small=True))
    assert host.name == "cpu"
    assert host.notes[0].startswith("running on the CPU: there is an NVIDIA card")
    with pytest.raises(NoDeviceError):
        choose_device(broken, "0", model_facts(small=True))
    bare = machine()
    with pytest.raises(NoDeviceError, match="no NVIDIA card on the bus"):
        choose_device(bare, "auto", model_facts(small=False))
    with pytest.raises(NoDeviceError, match=r"--device cpu: qwen38-27b has 17\.7 GiB"):
        choose_device(machine(card_3090()), "cpu", model_facts(small=False))
    assert choose_device(bare, "auto", model_facts(small=True)).notes == (
        "1024 MiB of 61440 MiB available stay with the system",
    )


def test_a_small_artifact_is_planned_from_its_directory(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.ninfer")
    known = facts("tiny", path, DEFAULT_CATALOG)
    assert (known.weights.text, known.weights.mtp, known.weights.draft_head) == (512 * 128, 64 * 128, 128 * 128)
    assert (known.parameters, known.packed, known.weights.dflash2) == (512 * 64, False, None)
    assert (known.geometry.attention_layers, known.geometry.linear_layers) == (1, 3)
    plan = make_plan(str(path), machine(), max_concurrency="2")
    assert (plan.device, plan.lanes, plan.max_context, plan.kv_capacity) == ("cpu", 2, 4096, 4096)
    assert plan.ledger["weights"] == 512 * 64 * 4
    # One attention layer, two KV heads of 32, bf16 keys and values.
    assert plan.ledger["KV pages"] == 4096 * 2 * 2 * 32 * 2
    assert plan.ledger["state images"] == 2 * 3 * (4 * 16 * 16 * 4 + 3 * (2 * 2 * 16 + 4 * 16) * 4)
    assert plan.free_bytes == 59 * GIB
    assert unsupported(plan) == ()
    assert make_plan(str(path), machine(card_3090())).device == "cuda:0"
    with pytest.raises(ConfigurationError, match="knows 4096 positions"):
        make_plan(str(path), machine(), max_context="4097")


def test_a_large_artifact_on_disk_is_planned_from_itself(tmp_path: Path) -> None:
    """Its own bytes count, not the catalog's, and the disk no longer matters."""
    models = tmp_path / "models"
    models.mkdir()
    write_tiny(models / "qwen3_8_27b.ninfer")
    plan = make_plan("qwen38-27b", machine(card_3090()), model_dir=str(models), profile="tuned-none")
    assert plan.max_context == 4096
    assert any("sizes from artifact" in note for note in plan.notes)


def test_a_full_disk_is_said() -> None:
    import msgspec

    full = msgspec.structs.replace(machine(card_3090()), disk_free_bytes=GIB)
    plan = make_plan("qwen38-27b", full)
    assert any("1024 MiB free; the artifact needs 18103 MiB" in note for note in plan.notes)


@dataclass(frozen=True)
class Row:
    """One row of spec/memory-and-fit.md §5.1."""

    model: str
    profile: str
    lanes: int
    context: int
    pool: int | None
    kv: str
    speculation: str
    chunk: int
    cublas: bool


ROWS = (
    Row("qwen38-27b", "tuned", 1, 262_144, None, "rk4v4", "dflash2 K7 + draft head", 4096, True),
    Row("qwen38-27b", "tuned-mtp", 2, 262_144, None, "rk4v4", "mtp K3 + draft head", 2048, True),
    Row("qwen38-27b", "tuned-none", 2, 262_144, None, "rk4v4", "none", 2048, True),
    Row("qwen36-35b-a3b", "tuned", 3, 262_144, None, "rk4v4", "mtp K3 + draft head", 4096, True),
    Row("qwen36-35b-a3b", "tuned-none", 3, 262_144, None, "rk4v4", "none", 4096, True),
    Row("qwen38-27b", "int8", 1, 65_536, 65_536, "int8", "mtp K3 + draft head", 1024, False),
    Row("qwen38-27b", "c8", 8, 8192, 16_384, "int8", "mtp K3 + draft head", 512, False),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.model} {row.profile}")
def test_profiles_are_those_of_the_launchers(row: Row) -> None:
    profile = load_profile(row.model, row.profile, explicit=True)
    resolved = apply(resolve({}, {}), profile)
    options = resolved.options
    assert (
        Row(
            row.model,
            row.profile,
            options.max_concurrency,
            options.max_context,
            options.kv_capacity if isinstance(options.kv_capacity, int) else None,
            options.kv_dtype,
            str(profile.extras.speculation),
            options.prefill_chunk,
            profile.extras.prefill_cublas,
        )
        == row
    )
    tuned = row.profile.startswith("tuned")
    assert options.gdn_state_fp16 == tuned
    assert (options.min_p, options.presence_penalty) == ((0.03, 0.5) if tuned else (None, None))
    assert profile.extras.vision == ("overlay" if tuned else "off")
    assert options.pending_timeout_ms == 600_000
    assert not resolved.explicit("max_context")
    assert apply(resolved, profile) == resolved


def test_explicit_settings_come_before_the_profile() -> None:
    profile = load_profile("qwen38-27b", "tuned", explicit=False)
    resolved = apply(resolve({"kv_dtype": "bf16"}, {"NINFER_CONTEXT": "4096"}), profile)
    assert (resolved.options.kv_dtype, resolved.options.max_context) == ("bf16", 4096)
    assert resolved.explicit("max_context")


def test_profiles_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it has tuned, tuned-mtp, tuned-none, int8, c8"):
        load_profile("qwen38-27b", "fast", explicit=True)
    assert load_profile("nano", "tuned", explicit=False).values == {}
    with pytest.raises(ConfigurationError, match="it has none; leave --profile out"):
        load_profile("nano", "int8", explicit=True)
    text = DEFAULT_PROFILES.read_text()
    for name, old, new, words in (
        ("c8", "max-concurrency = 8", "max-lanes = 8", "unknown key 'max-lanes'"),
        ("tuned", "draft-tokens = 7", 'draft-tokens = "7"', "draft-tokens is '7', not of type int"),
        ("tuned", 'vision = "overlay"', 'vision = "resident"', "vision is 'resident'"),
        ("tuned", 'spec = "dflash2"', 'spec = "eagle"', "speculation 'eagle' is unknown"),
    ):
        path = tmp_path / "profiles.toml"
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(ConfigurationError, match=words):
            load_profile("qwen38-27b", name, explicit=True, path=path)
    path.write_text(text.replace("max-context = 8192", "max-context = 0"))
    with pytest.raises(ConfigurationError, match="--max-context 0: must be at least 1"):
        apply(resolve({}, {}), load_profile("qwen38-27b", "c8", explicit=True, path=path))


def test_a_catalog_that_does_not_describe_a_model(tmp_path: Path) -> None:
    text = DEFAULT_CATALOG.read_text()
    path = tmp_path / "models.toml"
    for old, new, words in (
        ('geometry = "dense-27b"', 'geometry = "dense"', "has no geometry"),
        ("layers = 64", "depth = 64", "geometries.dense-27b"),
        ("text_bytes = 15_638_427_648", "txt_bytes = 1", "text_bytes is missing"),
        ("dflash2_bytes = 2_226_792_960", "dflash2_bytes = -1", "dflash2_bytes is -1"),
    ):
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(ConfigurationError, match=words):
            facts_of_catalog("qwen38-27b", path)
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"ships with the program, but .* is not there"):
        facts_of_catalog("nano", path)
    with pytest.raises(ConfigurationError, match="the catalog has nano"):
        facts_of_catalog("other", path)
