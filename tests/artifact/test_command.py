"""The command `ninfer-artifact`, as a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.artifact.builder import write_model
from tests.artifact.test_examples import TINY


def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "engine.cli.artifact", *map(str, arguments)],
        check=False, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "200"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.ninfer"
    write_model(path)
    return path


def test_inspect_prints_a_summary(model: Path) -> None:
    result = run("inspect", model)
    assert (result.returncode, result.stderr) == (0, "")
    for text in ("artifact version 3", "name         small", "q5_g64_fp16", "row_split_k128_v1", "uses 19"):
        assert text in result.stdout
    assert len(result.stdout.splitlines()) < 30


def test_inspect_lists_objects_and_bindings_and_prints_json(model: Path) -> None:
    text = run("inspect", model, "--objects", "--bindings").stdout
    assert text.count("text/layers/0/gdn/query") == 3
    data = json.loads(run("inspect", model, "--objects", "--bindings", "--json").stdout)
    assert data["version"] == 3
    assert data["counts"]["objects"] == len(data["objects"]) == data["counts"]["tensors"] + 3
    assert data["counts"]["bindings"] == len(data["bindings"])
    assert data["bytes"]["files"] == model.stat().st_size
    assert sum(row["bytes"] for row in data["formats"].values()) == data["bytes"]["tensors"]
    assert data["bindings"]["text/final_norm"] == {"object": "text/final_norm"}


def test_verify_is_content_with_a_good_artifact(model: Path) -> None:
    result = run("verify", model, "--bytes", str(model.stat().st_size))
    assert result.returncode == 0, result.stdout
    assert result.stdout.splitlines()[-1] == f"{model}: small: good"
    assert json.loads(run("verify", model, "--json").stdout)["good"] is True


def test_verify_names_problems_and_ends_with_the_code_of_a_bad_artifact(tmp_path: Path) -> None:
    write_model(tmp_path / "a", drop="text/final_norm")
    result = run("verify", tmp_path / "a", "--sha256", "0" * 64)
    assert result.returncode == 5
    assert "PROBLEM parameter 'text/final_norm' is missing" in result.stdout
    assert "PROBLEM SHA-256: the file has" in result.stdout
    assert result.stdout.splitlines()[-1].endswith(": small: 2 problems")


def test_an_old_artifact_is_refused_with_the_command_that_upgrades_it(tmp_path: Path) -> None:
    (tmp_path / "old.ninfer").write_bytes(b"NINFER\0\x02" + TINY[8:])
    result = run("inspect", tmp_path / "old.ninfer")
    assert (result.returncode, result.stdout) == (5, "")
    assert result.stderr.startswith(
        f"ninfer-artifact: {tmp_path / 'old.ninfer'}: the file is an artifact of version 2;"
    )
    assert "`ninfer-artifact upgrade IN OUT`" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "COMMAND"),
        (("verify", "x", "--sha256", "12"), "'12' is not 64 hexadecimal digits"),
        (("verify", "x", "--bytes", "-1"), "is not a number of bytes"),
    ],
)
def test_wrong_usage_is_a_configuration_error(arguments: tuple[str, ...], text: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert text in result.stderr


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    data = TINY.replace(b'"tiny"', b'"\\u001b"').replace(b"   ", b" ", 1)
    (tmp_path / "a").write_bytes(data)
    result = run("inspect", tmp_path / "a")
    assert result.returncode == 0
    assert "name         \\x1b" in result.stdout
    assert "\x1b" not in result.stdout


def test_a_reader_that_stops_early_is_not_an_error(model: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "engine.cli.artifact", "inspect", "--objects", "--json", str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
