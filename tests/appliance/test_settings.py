"""Settings: which source wins, which paths follow, what is handed to other processes."""

import sys
from pathlib import Path

import msgspec
import pytest

from appliance.controller_config import ControllerConfig
from appliance.engine_start import engine_config, proof_key
from appliance.run_folder import RunFiles
from appliance.settings import Settings, default_catalog, from_text, load_settings, settings_lines, values_as_text
from appliance.supervisor import default_programs
from appliance.up import api_config
from engine.api.config import ApiConfig, from_options
from engine.core.config import read_config
from engine.exits import ConfigurationError
from tests.appliance.programs.controller import FixedPlan


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "some model.ninfer"
    path.write_bytes(b"x")
    return path


def settings(home: Path, artifact: Path, **flags: str) -> Settings:
    return load_settings({"home": str(home), "model": str(artifact), **flags}, {})


def test_flags_before_environment_before_file_before_default(tmp_path: Path, artifact: Path) -> None:
    (tmp_path / "settings.toml").write_text(f'port = 1111\nseed = 5\nmin-p = 0.5\nmodel = "{artifact}"\n')
    environ = {"NINFER_PORT": "2222", "NINFER_SEED": "6", "NINFER_HOME": str(tmp_path)}
    found = load_settings({"port": "3333"}, environ)
    assert (found.options.port, found.options.seed, found.options.min_p) == (3333, 6, 0.5)
    assert found.options.top_p is None
    sources = found.resolved.sources
    assert [sources[name] for name in ("port", "seed", "min_p", "top_p")] == ["flag", "environment", "file", "default"]
    table = "\n".join(settings_lines(found))
    assert "--port" in table
    assert "3333" in table


def test_folders_are_named_by_what_may_be_lost(tmp_path: Path, artifact: Path) -> None:
    found = settings(tmp_path / "home", artifact)
    found.make_folders()
    assert found.models == tmp_path / "home" / "models"
    assert found.cache == tmp_path / "home" / "cache"
    assert found.state.stat().st_mode & 0o777 == 0o700
    assert found.public_name == "some model"
    assert not found.fetch


def test_a_catalog_name_becomes_a_file_in_the_model_folder(tmp_path: Path) -> None:
    catalog = tmp_path / "models.toml"
    catalog.write_text(
        '[hub]\nendpoint = "https://example.org"\n[models.tiny]\nrepository = "a/b"\nfile = "tiny.ninfer"\nbytes = 8\n'
        f'revision = "{"a" * 40}"\nsha256 = "{"0" * 64}"\nformat_version = 3\n'
    )
    flags = {"home": str(tmp_path), "model": "tiny", "catalog": str(catalog), "model_dir": str(tmp_path / "elsewhere")}
    found = load_settings(flags, {})
    assert found.artifact == tmp_path / "elsewhere" / "tiny.ninfer"
    assert found.fetch
    with pytest.raises(ConfigurationError, match=r"--model huge: unknown model 'huge'; the catalog has tiny"):
        load_settings({**flags, "model": "huge"}, {})


def test_what_is_said_about_fetching_reaches_the_program_that_fetches(tmp_path: Path) -> None:
    flags = {"home": str(tmp_path), "model": "nano", "sources": "/media/usb http://10.0.0.7:8090", "offline": "on"}
    found = load_settings({**flags, "catalog_policy": "off"}, {})
    command = default_programs(found, RunFiles(tmp_path)).fetch
    said = " ".join(command)
    assert command[:4] == [sys.executable, "-m", "downloader", "nano"]
    assert "--from /media/usb --from http://10.0.0.7:8090 --offline" in said
    assert f"--catalog-policy off --catalog-keys {default_catalog().parent / 'keys'}" in said


def test_a_box_that_enforces_signatures_does_not_start_from_an_unsigned_catalog(tmp_path: Path) -> None:
    flags = {"home": str(tmp_path), "model": "nano", "catalog_policy": "enforce", "catalog_keys": str(tmp_path)}
    with pytest.raises(ConfigurationError, match=r"--model nano: catalog .* is not signed.*as NAME.pub"):
        load_settings(flags, {})


def test_what_is_not_pinned_is_served_only_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is not pinned.*a path to qwen3_6_35b_a3b-main.ninfer"):
        load_settings({"home": str(tmp_path), "model": "qwen36-35b-v2"}, {})


def test_what_is_wrong_is_named(tmp_path: Path, artifact: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        settings(tmp_path, tmp_path / "absent.ninfer")
    assert settings(tmp_path, artifact, profile="tuned").options.profile == "tuned", "run.sh names it for every model"
    with pytest.raises(ConfigurationError, match="--profile fast"):
        settings(tmp_path, artifact, profile="fast")
    (tmp_path / "settings.toml").write_text('home = "/elsewhere"\n')
    with pytest.raises(ConfigurationError, match="home cannot be set here"):
        settings(tmp_path, artifact)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="choose a writable folder with --home"):
        settings(tmp_path / "file", artifact).make_folders()


def test_settings_cross_to_the_controller_unchanged(tmp_path: Path, artifact: Path) -> None:
    found = settings(tmp_path, artifact, port="1234", greedy="on", min_p="0.25", kv_capacity="auto", api_key="secret")
    values = values_as_text(found.resolved)
    config = ControllerConfig(values=values, sources=dict(found.resolved.sources), run="/run/x")
    again = msgspec.json.decode(msgspec.json.encode(config), type=ControllerConfig)
    assert again.settings() == found
    assert from_text(values, found.resolved.sources, {}).resolved.explicit("port")


def test_the_programs_understand_their_configuration(tmp_path: Path, artifact: Path) -> None:
    found = settings(tmp_path, artifact, min_p="0.25", api_key="secret", prefill_chunk="256")
    files = RunFiles(tmp_path)
    api = msgspec.json.decode(msgspec.json.encode(api_config(found, files)), type=ApiConfig)
    assert (api.socket, api.state_file) == (str(files.engine_socket), str(found.state_file))
    assert (api.generation.min_p, api.model_id) == (0.25, "some model")
    assert "secret" not in msgspec.json.encode(api).decode()
    files.engine_config.write_bytes(msgspec.json.encode(engine_config(found, files, FixedPlan())))
    engine = read_config(files.engine_config)
    assert (engine.artifact, engine.max_context, engine.prefill_chunk) == (artifact, 4096, 256)
    assert engine.device == "cpu"
    files.engine_config.write_bytes(msgspec.json.encode(engine_config(found, files, FixedPlan(device="cuda:1"))))
    assert read_config(files.engine_config).device == "1", "the card that was planned for, not the first one"


def test_the_api_of_a_box_gets_every_option_that_ninfer_serve_gives_it(tmp_path: Path, artifact: Path) -> None:
    found = settings(
        tmp_path, artifact, cors="on", log_stats_interval_ms="7", request_log_jsonl="log", response_store_max_mib="3",
        response_store_max_records="4", allowed_hosts="one.example .two.example", open_network="without-a-key",
        kv_capacity="auto", default_thinking_budget="5", max_request_mib="6",
    )  # fmt: skip
    files = RunFiles(tmp_path)
    box = msgspec.json.decode(msgspec.json.encode(api_config(found, files)), type=ApiConfig)
    served = from_options(
        found.options, artifact=found.artifact, socket=files.engine_socket, state_file=found.state_file
    )  # fmt: skip
    differing = {name for name in ApiConfig.__struct_fields__ if getattr(box, name) != getattr(served, name)}
    assert differing == {"model_id", "key_store"}  # the catalog has its own name for it; only a box has a folder


def test_the_proof_is_bound_to_what_may_change_it(tmp_path: Path, artifact: Path) -> None:
    one = proof_key(settings(tmp_path, artifact).options, "f" * 32)
    assert one == proof_key(settings(tmp_path, artifact, port="1").options, "f" * 32)
    assert one != proof_key(settings(tmp_path, artifact).options, "e" * 32)
    assert one != proof_key(settings(tmp_path, artifact, device="0").options, "f" * 32)


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:8080"), ("::", "http://[::1]:8080"), ("10.0.0.7", "http://10.0.0.7:8080")],
)
def test_the_url_can_be_typed_here(tmp_path: Path, artifact: Path, host: str, url: str) -> None:
    assert settings(tmp_path, artifact, host=host).url == url
