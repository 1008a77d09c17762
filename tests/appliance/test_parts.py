"""Run folder, supervisord configuration, lock, notification, display."""

import configparser
import io
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from appliance import processes
from appliance.console import PlainDisplay, TerminalDisplay, invitation
from appliance.notify import notify
from appliance.owner import Lock, read_owner, running_owner
from appliance.run_folder import LONGEST_NAME, RunFiles, candidates, fits, run_folder
from appliance.settings import Settings, etc_file, load_settings
from appliance.supervisor import Programs, default_programs, render
from engine.exits import ConfigurationError
from engine.state_file import State

TEMPLATE = etc_file("supervisord.conf").read_text()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    artifact = tmp_path / "m.ninfer"
    artifact.write_bytes(b"x")
    return load_settings({"home": str(tmp_path / "home with % sign"), "model": str(artifact)}, {})


# Run folder


def test_the_run_folder_is_ours_alone_and_found_again(tmp_path: Path) -> None:
    run = Path(os.path.relpath(tmp_path))  # short
    environ = {"XDG_RUNTIME_DIR": str(run)} if fits(run / ("x" * 19)) else {}
    first = run_folder(tmp_path / "one", environ)
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert run_folder(tmp_path / "one", environ) == first
    other = run_folder(tmp_path / "two", environ)
    assert other != first
    first.rmdir()
    other.rmdir()


def test_a_long_runtime_folder_is_avoided(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    folder = run_folder(tmp_path, {"XDG_RUNTIME_DIR": str(long)})
    assert long not in folder.parents
    assert len(os.fsencode(folder)) + len(LONGEST_NAME) <= 107
    folder.rmdir()


def test_a_folder_that_others_may_open_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    environ = {"XDG_RUNTIME_DIR": "/tmp"}
    first = candidates(tmp_path, environ)[0]
    first.mkdir(mode=0o755)
    first.chmod(0o755)
    try:
        second = candidates(tmp_path, environ)[1]
        if os.geteuid() == 0:
            assert run_folder(tmp_path, environ) == second
            second.rmdir()
        else:
            with pytest.raises(ConfigurationError, match="set XDG_RUNTIME_DIR"):
                run_folder(tmp_path, environ)
    finally:
        first.rmdir()


# supervisord's configuration


def parsed(text: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";", "#"))
    parser.read_string(text)
    return parser


def test_nothing_listens_on_tcp_and_the_socket_is_closed_to_others(settings: Settings) -> None:
    files = RunFiles(Path("/run/ninfer/x"))
    config = parsed(render(TEMPLATE, files, default_programs(settings, files), "key", root=False))
    assert not config.has_section("inet_http_server")
    assert config["unix_http_server"]["chmod"] == "0700"
    assert config["unix_http_server"]["file"] == "/run/ninfer/x/supervisor.sock"
    assert config["supervisord"]["logfile"] == "/dev/null"
    assert "user" not in config["supervisord"]
    for program in ("engine", "fetch"):
        assert (config[f"program:{program}"]["autostart"], config[f"program:{program}"]["autorestart"]) == (
            "false",
        ) * 2
    assert "PROCESS_STATE" in config["eventlistener:controller"]["events"]
    assert (
        parsed(render(TEMPLATE, files, default_programs(settings, files), "key", root=True))["supervisord"]["user"]
        == "root"
    )


def test_percent_signs_are_escaped_and_comments_refused(settings: Settings) -> None:
    files = RunFiles(Path("/run/x"))
    programs = Programs(api=["a b", "100%"], controller=["c"], engine=["e"], fetch=["f"])
    config = parsed(render(TEMPLATE, files, programs, "key"))
    assert config["program:api"]["command"] == "'a b' 100%%"
    with pytest.raises(ConfigurationError, match="cannot carry"):
        render(TEMPLATE, files, Programs(api=["a #b"], controller=["c"], engine=["e"], fetch=["f"]), "key")


# Lock


def test_one_box_a_home(tmp_path: Path) -> None:
    first, second = Lock(tmp_path), Lock(tmp_path)
    assert first.acquire(tmp_path) is None
    owner = read_owner(tmp_path)
    assert owner is not None
    assert owner.pid == os.getpid()
    assert running_owner(tmp_path) == owner
    with pytest.raises(ConfigurationError, match=rf"pid {os.getpid()}.*ninfer-appliance stop"):
        second.acquire(tmp_path)
    first.release()
    assert read_owner(tmp_path) is None
    assert second.acquire(tmp_path) is None
    second.release()


def test_an_owner_with_a_reused_pid_is_not_running(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    lock.acquire(tmp_path)
    (tmp_path / "up.json").write_text(f'{{"pid": {os.getpid()}, "created": 1.0, "run": "/x"}}')
    assert running_owner(tmp_path) is None
    lock.release()


# Processes


def test_leftovers_are_found_and_ended(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    environment = {**os.environ, processes.RUN_VARIABLE: str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = processes.leftovers(tmp_path)
        assert [process.pid for process in found] == [child.pid]
        assert processes.leftovers(tmp_path / "other") == []
        began = time.monotonic()
        assert processes.end(found, 0.1, child.poll) == 1
        assert time.monotonic() - began < 2.0
        assert child.wait() == -signal.SIGKILL


def test_a_child_dies_with_its_parent() -> None:
    code = (
        "import os, subprocess, sys; from appliance.processes import die_with_parent; "
        "child = subprocess.Popen(['sleep', '60'], preexec_fn=die_with_parent(os.getpid())); "
        "print(child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and processes.alive(psutil.Process(pid)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_owner_of_a_port_is_named() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert f"(pid {os.getpid()})" in processes.port_owner(server.getsockname()[1])


# Notification and display


def test_systemd_hears_only_when_it_asked(tmp_path: Path) -> None:
    assert not notify("READY=1", environ={})
    assert not notify("READY=1", environ={"NOTIFY_SOCKET": str(tmp_path / "absent")})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        name = f"\0ninfer-test-{os.getpid()}"
        listener.bind(name)
        assert notify("READY=1", "STATUS=on", environ={"NOTIFY_SOCKET": "@" + name[1:]})
        assert listener.recv(100) == b"READY=1\nSTATUS=on"


def test_plain_display_says_each_thing_once() -> None:
    raw, now = io.BytesIO(), [0.0]
    out = io.TextIOWrapper(raw, encoding="utf-8")
    display = PlainDisplay(out, lambda: now[0])
    for second, state in enumerate([
        State(phase="fetch", detail="download", done=1 << 30, total=2 << 30, unit="bytes"),
        State(phase="fetch", detail="download", done=1 << 31, total=2 << 30, unit="bytes"),
        State(phase="load", done=1, total=2, unit="layers"),
        State(phase="load", done=1, total=2, unit="layers"),
        State(phase="ready"),
    ]):  # fmt: skip
        now[0] = float(second)
        display.show(state)
    display.output(b"program line\n")
    display.close()
    assert raw.getvalue().decode().splitlines() == [
        "fetch: download 1.00 of 2.00 GiB",
        "load: 1 of 2 layers",
        "ready",
        "program line",
    ]


def test_terminal_display_shows_phases_and_cleans_up() -> None:
    controlling, terminal = os.openpty()
    with os.fdopen(terminal, "w") as out:
        display = TerminalDisplay(out)
        display.show(State(phase="load", detail="weights", done=1, total=2, unit="layers"))
        display.output(b"half a l")
        display.output(b"ine\n")
        display.show(State(phase="warm-up", detail="chunk"))
        display.show(State(phase="ready"))
        display.say("try: this")
        display.close()
        out.flush()
        shown = os.read(controlling, 1 << 16).decode()
    os.close(controlling)
    for part in ("load", "weights 1 of 2 layers", "half a line", "warm-up", "try: this"):
        assert part in shown, part
    assert shown.rstrip().endswith("try: this")
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h"), "the cursor is back"


def test_the_invitation_can_be_typed_and_hides_the_key(settings: Settings, tmp_path: Path) -> None:
    lines = invitation(settings)
    assert lines[0] == "ready at http://127.0.0.1:8080"
    assert '"stream": true' in lines[-1]
    nano = load_settings({"home": str(tmp_path), "model": "nano"}, {})
    assert "random weights" in invitation(nano)[1]
    secret = load_settings({"home": str(tmp_path), "model": str(settings.artifact), "api_key": "hush"}, {})
    assert "hush" not in "".join(invitation(secret))
    assert "Authorization: Bearer" in invitation(secret)[1]
