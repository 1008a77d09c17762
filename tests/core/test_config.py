"""The configuration file: every wrong value is named, with what would work."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.core.__main__ import main
from engine.core.config import EngineConfig, check_config, encode_config, read_config
from engine.exits import ConfigurationError


def test_it_reads_what_it_writes(tmp_path: Path) -> None:
    config = EngineConfig(artifact=Path("m.ninfer"), socket=Path("s"), lanes=3, max_context=100, kv_capacity=200)
    path = tmp_path / "engine.json"
    path.write_bytes(encode_config(config))
    assert read_config(path) == config
    assert config.pages == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lanes": 9}, ["<= 8", "$.lanes"]),
        ({"lanes": "2"}, ["`int`", "$.lanes"]),
        ({"lanes": True}, ["$.lanes"]),
        ({"max_context": 0}, [">= 1", "$.max_context"]),
        ({"max_context": 1e308}, ["$.max_context"]),
        ({"prefill_chunk": 100}, ["$.prefill_chunk"]),
        ({"prefill_chunk": 192}, ["multiple of 128"]),
        ({"drain_seconds": -1}, ["$.drain_seconds"]),
        ({"log_level": "loud"}, ["loud", "$.log_level"]),
        ({"artifact": 5}, ["expected a path, got 5"]),
        ({"artifact": ""}, ["expected a path"]),
        ({"colour": "red"}, ["unknown field `colour`"]),
        ({"kv_dtype": "int8"}, ["int8", "use bf16"]),
        ({"device": "gpu"}, ["'gpu'", "auto, cpu"]),
        ({"device": "-1"}, ["'-1'"]),
        ({"device": "²"}, ["'²'"]),
        ({"max_context": 9000}, ["kv_capacity is 8192", "max_context 9000", "at least 9000"]),
        ({"kv_capacity": 9000}, ["kv_capacity is 9000", "1 lanes", "64 to 8192"]),
        ({"lanes": 8, "max_context": 64, "kv_capacity": 128}, ["kv_capacity is 128", "512 to 512"]),
        ({"socket": "/" + "x" * 107}, ["108 bytes", "107", "shorter folder"]),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, change: dict[str, Any], words: list[str]) -> None:
    path = tmp_path / "engine.json"
    path.write_text(json.dumps({"artifact": "a", "socket": "s", **change}))
    with pytest.raises(ConfigurationError) as caught:
        read_config(path)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"artifact": "a"}', "\xff"])
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "engine.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"engine\.json"):
        read_config(path)
    assert main(["--config", str(path)]) == 2
    assert main(["--config", str(tmp_path / "absent.json")]) == 2


def test_the_defaults_are_right() -> None:
    check_config(EngineConfig(artifact=Path("a"), socket=Path("s")))
