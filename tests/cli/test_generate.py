"""`ninfer`: one answer on stdout (spec/cli.md §2)."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cli.generate import main
from tests.api.box import Box, running
from tests.cli.test_serve import run


def prompt(**script: object) -> str:
    return json.dumps({"script": script})


@pytest.fixture
def artifact(tmp_path: Path) -> str:
    (tmp_path / "nano.ninfer").touch()
    return str(tmp_path / "nano.ninfer")


def test_an_engine_of_its_own(artifact: str, tmp_path: Path) -> None:
    file = tmp_path / "messages.json"
    file.write_text(
        json.dumps({"messages": [{"role": "user", "content": prompt(text="a thought</think>an 🌍 STOP x")}]})
    )
    done = run(
        "generate", artifact, "--messages", str(file), "--stop", "STOP", "--print-token-ids", "--log-level", "info"
    )
    assert done.returncode == 0, done.stderr
    answer = done.stdout.split("\n")
    assert answer == ["an 🌍 ", ""]  # the answer alone, and the newline that was missing
    for said in ("a thought", "finish stop_string", "token ids: ", "tok/s"):
        assert said in done.stderr


def test_an_engine_that_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "exit-5").touch()
    done = run("generate", str(tmp_path / "exit-5"), "--prompt", "hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert "ended during its start with status 5" in done.stderr


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with running(tmp_path_factory.mktemp("box")) as made:
        yield made


def test_a_running_box(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{box.port}"
    flags = ["--url", url, "--seed", str(2**64 - 1), "--max-new", "50", "--greedy"]
    assert main([*flags, "--no-thinking", "--prompt", prompt(text="hello there\n")]) == 0
    shown = capsys.readouterr()
    assert shown.out == "hello there\n"
    assert "finish stop" in shown.err
    submit = box.seen("submit")[-1]
    assert (submit["seed"], submit["max_tokens"], submit["temperature"]) == (2**64 - 1, 50, 0)
    assert main(["--url", url, "--prompt", prompt(text="thinking"), "--reasoning-effort", "low"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err.split("\n")[0]) == ("\n", "thinking")
    assert box.seen("submit")[-1]["seed"] == 0
    for form, told in (
        (["--choice", "a", "--choice", ""], "| T0"),
        (["--json-object"], "%json"),
        (["--regex", "é+"], "e9}+"),
    ):
        assert main(["--url", url, "--prompt", prompt(text="a"), "--no-thinking", *form]) == 0
        assert told in box.seen("submit")[-1]["constraint"]
    capsys.readouterr()
    assert main(["--url", url, "--prompt", prompt(text="a"), "--regex", "(?=a)"]) == 1
    assert "look-around is not supported" in capsys.readouterr().err
    assert main(["--url", url, "--prompt", prompt(text="x", error="boom")]) == 1
    assert "the server failed on this request" in capsys.readouterr().err
    assert main(["other", "--url", url, "--prompt", "x"]) == 1
    assert "'other'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["m"], "--prompt"),
        (["m", "--prompt", "x", "--messages", "y"], "not allowed with"),
        (["--prompt", "x"], "--url"),
        (["m", "--prompt", "x", "--max-new", "0"], "--max-new 0"),
        (["m", "--prompt", "x", "--json-object", "--regex", "a"], "not allowed with"),
        (["m", "--prompt", "x", "--json-schema-file", "/nowhere.json"], "/nowhere.json"),
        (["m", "--prompt", "x", "--json-schema-file", __file__], "not JSON"),
        (["m", "--prompt", "x", "--grammar-file", "/nowhere.gbnf"], "/nowhere.gbnf"),
        (["m", "--prompt", "x", "--vision"], "--vision is not in this version"),
        (["m", "--prompt", "x", "--url", "http://h", "--print-token-ids"], "--print-token-ids"),
        (["m", "--messages", "/nowhere.json"], "/nowhere.json"),
        (["m", "--messages", __file__], "not JSON"),
        (["/nowhere/m", "--prompt", "x"], "/nowhere/m is not a file"),
        (["m", "--prompt", "x", "--stop", ""], "stop[0]"),
        (["--url", "http://127.0.0.1:9", "--prompt", "x"], "http://127.0.0.1:9"),
    ],
)
def test_bad_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
