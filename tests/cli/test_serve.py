"""`ninfer-serve` as a process (spec/cli.md §1, spec/serving.md §1)."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.cli import generate, serve
from engine.cli.child import exit_code
from engine.exits import seed_status
from engine.version import version
from tests.api.box import ROOT, Box


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.cli.command", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@contextlib.contextmanager
def served(folder: Path, artifact: str, *flags: str, key: str | None = None) -> Iterator[Box]:
    box = Box(folder)
    (folder / artifact).touch()
    command = [
        sys.executable,
        "-m",
        "tests.cli.command",
        "serve",
        str(folder / artifact),
        "--port",
        str(box.port),
        *flags,
    ]
    environment = os.environ | ({} if key is None else {"NINFER_API_KEY": key})
    with box.api_log.open("ab") as log:
        box.api = subprocess.Popen(command, cwd=ROOT, stderr=log, env=environment)
    try:
        yield box
    finally:
        box.stop()


def engine_of(box: Box) -> psutil.Process:
    assert box.api is not None
    return psutil.Process(box.api.pid).children()[0]


def test_serve_until_told_to_stop(tmp_path: Path) -> None:
    with served(tmp_path, "nano.ninfer", "--max-context", "512", "--model-id", "org/mine", key="secret") as box:
        box.wait(200)
        key = {"x-api-key": "secret"}
        assert box.request("GET", "/v1/models").status == 401
        model = box.request("GET", "/v1/models/org/mine", headers=key).json
        assert model["max_model_len"] == 512
        assert '"key": false' in box.api_log.read_text()  # the engine does not get the API's key
        engine = engine_of(box)
        assert box.api is not None
        box.api.send_signal(signal.SIGTERM)
        assert box.api.wait(timeout=30) == 0
        assert not engine.is_running()


def test_an_engine_that_dies_ends_it_with_3(tmp_path: Path) -> None:
    with served(tmp_path, "nano.ninfer") as box:
        box.wait(200)
        engine_of(box).kill()
        box.wait(503)  # clients hear of it first
        assert box.api is not None
        assert box.api.wait(timeout=30) == 3


def test_an_engine_that_cannot_start(tmp_path: Path) -> None:
    with served(tmp_path, "exit-5") as box:
        assert box.api is not None
        assert box.api.wait(timeout=30) == 1


@pytest.mark.parametrize(("returncode", "status"), [(0, 0), (2, 1), (3, 3), (4, 1), (5, 1), (6, 1), (-9, 3)])
def test_statuses(returncode: int, status: int) -> None:
    assert seed_status(exit_code(returncode)) == status


def test_the_engine_does_not_outlive_us(tmp_path: Path) -> None:
    with served(tmp_path, "nano.ninfer") as box:
        box.wait(200)
        engine = engine_of(box)
        assert box.api is not None
        box.api.kill()
        box.api.wait()
        engine.wait(timeout=20)


@pytest.mark.parametrize("main", [serve.main, generate.main])
@pytest.mark.parametrize(("flag", "said"), [("--help", "--max-context"), ("-h", "usage"), ("--version", version())])
def test_help_and_version(main: Any, flag: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([flag])
    assert ended.value.code == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x", "--port", "0"), "--port: '0' must be at least 1"),
        (("x", "--nonsense"), "--nonsense"),
        (("x", "--vision"), "--vision is not in this version"),
        (("x", "--spec=mtp"), "--spec is not in this version"),
        ((), "MODEL"),
        (("/nowhere/x.ninfer",), "/nowhere/x.ninfer is not a file"),
        ((__file__, "--kv-capacity", "auto"), "from 8192 (one request)"),
        ((__file__, "--kv-capacity", "100"), "kv_capacity is 100"),
    ],
)
def test_bad_arguments_end_with_1(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(arguments) == 1
    shown = capsys.readouterr().err
    assert said in shown
    assert "usage: ninfer-serve" in shown


def test_a_taken_port_ends_with_1(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = run("serve", __file__, "--port", port)
        assert done.returncode == 1
        assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
