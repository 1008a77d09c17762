"""The api's configuration file."""

from pathlib import Path

import msgspec
import pytest

from engine.api.config import ApiConfig, GenerationDefaults, from_options, read_config, read_keys, write_keys
from engine.exits import ConfigurationError
from engine.options import Options, resolve, rows_of


def test_every_generation_option_has_its_place() -> None:
    rows = [name for name, row in rows_of(Options) if row.section == "generation"]
    assert list(GenerationDefaults.__struct_fields__) == rows


def test_options_survive_the_file(tmp_path: Path) -> None:
    flags = {"port": "9000", "model_id": "mine", "greedy": "on", "top_k": "3", "chat_template": "/t.jinja",
             "response_store_max_records": "7", "response_store_max_mib": "8"}  # fmt: skip
    options = resolve(flags, environ={}).options
    made = from_options(options, artifact=Path("/a"), socket=Path("/s"), state_file=Path("/state.json"))
    assert (made.port, made.model_id, made.generation.top_k, made.chat_template) == (9000, "mine", 3, "/t.jinja")
    assert made.generation.greedy
    assert (made.response_store_max_records, made.response_store_max_mib) == (7, 8)
    file = tmp_path / "api.json"
    file.write_bytes(msgspec.json.encode(made))
    assert read_config(file) == made


def test_keys_come_from_the_file_or_else_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    open_server = ApiConfig(artifact="a", socket="s")
    with_file = ApiConfig(artifact="a", socket="s", api_key_file=str(file))
    monkeypatch.delenv("NINFER_API_KEY", raising=False)
    assert read_keys(open_server) == []
    monkeypatch.setenv("NINFER_API_KEY", "from-environment")
    assert read_keys(open_server) == ["from-environment"]
    with pytest.raises(ConfigurationError, match="keys"):
        read_keys(with_file)
    write_keys(file, [])
    with pytest.raises(ConfigurationError, match="holds no key"):
        read_keys(with_file)
    write_keys(file, ["one", "two"])
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_keys(with_file) == ["one", "two"]
