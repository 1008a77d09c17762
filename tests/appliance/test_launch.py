"""The seed launchers' variables, and what a start says of itself (spec/cli.md §5.1)."""

from pathlib import Path

import msgspec
import pytest

from appliance import banner, sizing, up
from appliance.cli import main
from appliance.controller_config import ControllerConfig
from appliance.launch_variables import OFF_ALONE, REFUSED
from appliance.profiles import launch_profile
from appliance.settings import Settings, load_settings, values_as_text
from engine.exits import ConfigurationError
from engine.log import configure
from engine.options import Options, rows_of
from engine.plan import PLAIN, Speculation
from tests.appliance.described import card_3090, machine
from tests.appliance.tiny import write_tiny

# Every variable of the table of spec/cli.md §5.1.
TABLE = """HOST PORT MODEL MODEL_DIR SERVER CHAT_TEMPLATE CONTEXT CONCURRENCY KV_CAPACITY KV_DTYPE SPEC DRAFT_TOKENS
PREFILL_CHUNK VISION VISION_RESIDENCY HOST_CONTEXT_MIB MIN_P PRESENCE_PENALTY FALLBACK AUTO_HOST_CACHE
HOST_CACHE_PERCENT HOST_CACHE_RESERVE_MIB HOST_CACHE_MAX_MIB MAX_OUTPUT_TOKENS MLP_A8_DECODE CONTEXT_STORE
CONTEXT_STORE_MAX_GIB LOOKUP_NGRAM CUDA_SYNC S3_BUCKET"""


def launch(tmp_path: Path, model: str = "qwen38-27b", profile: str | None = None, **variables: str) -> Settings:
    environ = {f"NINFER_{name}": text for name, text in variables.items()}
    return load_settings({"home": str(tmp_path), "model": model, "profile": profile}, environ)


@pytest.mark.parametrize("name", TABLE.split())
def test_every_variable_of_the_launchers_is_taken_or_refused_by_name(tmp_path: Path, name: str) -> None:
    if f"NINFER_{name}" in {row.env for _, row in rows_of(Options)}:
        return
    with pytest.raises(ConfigurationError, match=f"NINFER_{name}"):
        launch(tmp_path, **{name: "on" if f"NINFER_{name}" in OFF_ALONE else "no such word"})


@pytest.mark.parametrize(
    ("model", "spec", "speculation", "lanes", "chunk"),
    [
        ("qwen38-27b", None, Speculation("dflash2", 7, draft_head=True), 1, 4096),
        ("qwen38-27b", "dflash2", Speculation("dflash2", 7, draft_head=True), 1, 4096),
        ("qwen38-27b", "mtp", Speculation("mtp", 3, draft_head=True), 2, 2048),
        ("qwen38-27b", "none", PLAIN, 2, 2048),
        ("qwen36-35b-a3b", "mtp", Speculation("mtp", 3, draft_head=True), 3, 4096),
        ("qwen36-35b-a3b", "none", PLAIN, 3, 4096),
    ],
)
def test_the_kind_of_speculation_selects_the_row_of_tuned(
    tmp_path: Path, model: str, spec: str | None, speculation: Speculation, lanes: int, chunk: int
) -> None:
    settings = launch(tmp_path, model, **({} if spec is None else {"SPEC": spec}))
    assert (settings.options.max_concurrency, settings.options.prefill_chunk) == (lanes, chunk)
    assert not settings.resolved.explicit("max_concurrency"), "the ladder may step down what a row sets"
    plan = sizing.make_plan(settings, machine(card_3090()), supported=None)
    assert plan.settings.speculation == speculation
    assert plan.settings.prefill_chunk == chunk


@pytest.mark.parametrize(
    ("model", "profile", "variables", "words"),
    [
        ("qwen38-27b", None, {"SPEC": "eagle"}, "NINFER_SPEC: 'eagle' must be one of mtp, none, dflash2"),
        ("qwen36-35b-a3b", None, {"SPEC": "dflash2"}, "profile tuned of qwen36-35b-a3b has no row.*it has mtp, none"),
        ("qwen38-27b", "int8", {"SPEC": "none"}, "profile int8 of qwen38-27b has no row.*it has mtp"),
        ("nano", None, {"SPEC": "mtp"}, "NINFER_SPEC mtp: nano has no row with it; it has none"),
        ("qwen38-27b", None, {"SPEC": "none", "DRAFT_TOKENS": "3"}, "NINFER_DRAFT_TOKENS 3: .*drafts nothing"),
        ("qwen38-27b", None, {"DRAFT_TOKENS": "16"}, "'16' must be an integer from 1 to 15"),
        ("qwen38-27b", None, {"VISION": "yes"}, "NINFER_VISION: 'yes' must be one of on, off"),
        ("qwen38-27b", None, {"VISION_RESIDENCY": "resident"}, "=resident is not in this version; overlay works"),
        ("qwen38-27b", None, {"HOST_CACHE_PERCENT": "50"}, "needs NINFER_AUTO_HOST_CACHE=on, which is not"),
        ("qwen38-27b", None, {"AUTO_HOST_CACHE": "on"}, "NINFER_AUTO_HOST_CACHE=on is not in this version"),
        ("qwen38-27b", None, {"KV_DTYPE": "q4"}, "NINFER_KV_DTYPE"),
        ("qwen38-27b", None, {"FALLBACK": "perhaps"}, "NINFER_FALLBACK"),
        ("qwen38-27b", None, {"MIN_P": "preset"}, "NINFER_MIN_P"),
        ("qwen38-27b", None, {"MODEL": "/no/such.ninfer"}, "NINFER_MODEL /no/such.ninfer: no such file"),
    ],
)
def test_what_cannot_be_is_refused_with_status_2(
    tmp_path: Path, model: str, profile: str | None, variables: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        launch(tmp_path, model, profile, **variables)
    assert caught.value.exit_code == 2


def test_the_command_ends_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NINFER_SPEC", "eagle")
    assert main(["up", "--home", str(tmp_path), "--model", "qwen38-27b"]) == 2
    assert "NINFER_SPEC: 'eagle' must be one of" in capsys.readouterr().err


def test_variables_adjust_the_row_and_reach_the_controller(tmp_path: Path) -> None:
    settings = launch(
        tmp_path, SPEC="mtp", DRAFT_TOKENS="11", VISION="off", VISION_RESIDENCY="resident", HOST_CONTEXT_MIB="0",
        CONTEXT="65536", AUTO_HOST_CACHE="off", MLP_A8_DECODE="off", SERVER="",
    )  # fmt: skip
    config = ControllerConfig(
        values=values_as_text(settings.resolved),
        sources=dict(settings.resolved.sources),
        run="/run/x",
        variables=dict(settings.variables),
    )
    again = msgspec.json.decode(msgspec.json.encode(config), type=ControllerConfig).settings()
    assert again == settings
    extras = launch_profile(again.resolved, again.variables).extras
    assert extras.speculation == Speculation("mtp", 11, draft_head=True)
    assert (extras.vision, extras.host_context_mib) == ("off", 0)
    plan = sizing.make_plan(again, machine(card_3090()), supported=None)
    assert (plan.settings.speculation.drafts, plan.settings.vision, plan.max_context) == (11, "off", 65_536)


def test_default_leaves_a_guard_to_the_models_preset(tmp_path: Path) -> None:
    options = launch(tmp_path).options
    assert (options.min_p, options.presence_penalty) == (0.03, 0.5)
    settings = launch(tmp_path, MIN_P="default", PRESENCE_PENALTY="0.2")
    assert (settings.options.min_p, settings.options.presence_penalty) == (None, 0.2)
    assert settings.resolved.explicit("min_p")
    flags = {"home": str(tmp_path), "model": "qwen38-27b", "min_p": "0.1"}
    assert load_settings(flags, {"NINFER_MIN_P": "default"}).options.min_p == 0.1, "flags come first"


def test_a_path_in_the_environment_is_the_file_of_the_named_model(tmp_path: Path) -> None:
    artifact = write_tiny(tmp_path / "mine.ninfer")
    settings = launch(tmp_path, "qwen38-27b", MODEL=str(artifact))
    assert (settings.artifact, settings.public_name, settings.fetch) == (artifact, "qwen38-27b", False)
    assert settings.options.kv_dtype == "rk4v4", "the row is that of the name"
    alone = load_settings({"home": str(tmp_path)}, {"NINFER_MODEL": str(artifact)})
    assert (alone.artifact, alone.public_name) == (artifact, "mine")
    assert launch(tmp_path, "nano", MODEL="qwen38-27b").model == "nano", "a flag comes before a name"


def test_a_start_says_what_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert banner.facts(launch(tmp_path, SPEC="mtp")) == {
        "model": "qwen38-27b, profile tuned-mtp",
        "lanes": "2",
        "context": "262144 tokens",
        "pool": "262144 tokens",
        "KV": "rk4v4, recurrent state FP16",
        "speculation": "mtp, 3 drafts, draft head",
        "vision": "overlay",
        "prefill": "chunks of 2048 tokens, cuBLAS",
        "cache": "no prefix reuse in this version; 8192 MiB of host memory wanted for it, none taken",
        "guard": "min-p 0.03, presence penalty 0.5",
        "template": "the artifact's",
        "API": "http://127.0.0.1:8080/v1",
    }
    c8 = banner.facts(launch(tmp_path, profile="c8", KV_CAPACITY="auto", CHAT_TEMPLATE="/t.jinja", PORT="9"))
    assert (c8["lanes"], c8["pool"], c8["template"]) == ("8", "what fits", "/t.jinja")
    assert (c8["guard"], c8["vision"], c8["API"]) == ("the model's preset", "off", "http://127.0.0.1:9/v1")
    nano = banner.facts(launch(tmp_path, "nano"))
    assert (nano["model"], nano["speculation"]) == ("nano", "off")
    up.print_banner(launch(tmp_path), nano)
    assert "speculation  off\n" in capsys.readouterr().out
    configure("up", "info", json=True)
    up.print_banner(load_settings({"home": str(tmp_path), "log_json": "on"}, {}), nano)
    configure("up", "info", json=False)
    assert '"speculation": "off"' in "".join(capsys.readouterr())


def test_no_variable_is_both_taken_and_refused() -> None:
    assert not set(REFUSED) & {row.env for _, row in rows_of(Options)}
