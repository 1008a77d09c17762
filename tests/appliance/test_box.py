"""The whole appliance as processes: real up, supervisord and controller; scripted engine, api and fetch."""

import json
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.appliance.box import Box

MakeBox = Callable[..., Box]


@pytest.fixture
def make_box(tmp_path: Path) -> Iterator[MakeBox]:
    boxes: list[Box] = []

    def make(**script: dict[str, Any]) -> Box:
        boxes.append(Box(tmp_path, **script))
        return boxes[-1]

    yield make
    for box in boxes:
        box.close()


def test_a_box_from_power_on_to_stop(make_box: MakeBox) -> None:
    began = time.monotonic()
    box = make_box().start()
    while box.health()[0] == 0:
        assert time.monotonic() - began < 10, box.output
        time.sleep(0.02)
    api_after = time.monotonic() - began
    state = box.ready()
    assert api_after < 5, "2 s on an idle machine"
    assert state.plan["max_context"] == 4096
    assert state.url == f"http://127.0.0.1:{box.port}"
    assert state.exit_code is None
    assert box.health()[0] == 200
    state = box.wait(lambda now: now.phase == "ready" and now.findings)
    assert [(one.check, one.level, one.command) for one in state.findings] == [("disk", "warning", "du -xh")]
    assert box.output.count("home is small") == 1, "one line each"

    # Nothing of supervisord on TCP (X6).
    everyone = box.everyone()
    assert len(everyone) == 4, "supervisord, controller, api, engine"
    listening = [
        connection.laddr.port
        for process in everyone
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening == [box.port]
    (folder,) = box.run.iterdir()
    for path, mode in ((folder, 0o700), (folder / "supervisor.sock", 0o700), (folder / "supervisor.key", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode, path

    # A second box in this home is refused, and names the first.
    second = box.command("up")
    assert box.process is not None
    assert second.returncode == 2
    assert f"pid {box.process.pid}" in second.stderr

    status = box.command("status", "--json")
    assert status.returncode == 0, status.stderr
    told = json.loads(status.stdout)
    assert (told["running"], told["pid"], told["state"]["phase"]) == (True, box.process.pid, "ready")
    assert told["programs"]["engine"].startswith("RUNNING")
    assert "phase ready" in box.command("status").stdout

    # The api comes back at once.
    first_api = box.program("api").pid
    os.kill(first_api, signal.SIGKILL)
    killed = time.monotonic()
    while box.health()[1].get("pid") in (None, first_api):
        assert time.monotonic() - killed < 10.0
        time.sleep(0.02)

    # kill -9 of the engine: back without help, api untouched.
    api = box.program("api").pid
    assert state.engine_pid is not None
    os.kill(state.engine_pid, signal.SIGKILL)
    killed = time.monotonic()
    while box.health()[0] == 200:
        assert time.monotonic() - killed < 2.0
        time.sleep(0.01)
    again = box.wait(lambda now: now.phase == "ready" and now.restarts == 1)
    assert again.engine_pid != state.engine_pid
    assert box.program("api").pid == api

    stopped = box.command("stop")
    assert (stopped.returncode, stopped.stdout.strip()) == (0, "stopped"), stopped.stderr
    assert box.ended() == 0
    assert box.everyone() == []
    assert list(box.run.iterdir()) == []
    for line in (f"ready at http://127.0.0.1:{box.port}", "try: curl -N", "--model", "flag", "default"):
        assert line in box.output
    final = box.state()
    assert final is not None
    assert (final.exit_code, final.engine_pid) == (0, None)
    assert box.command("status").returncode == 3
    assert "no box" in box.command("stop").stdout


def test_an_idle_engine_that_goes_wrong_is_replaced(make_box: MakeBox) -> None:
    box = make_box(engine={"later": [4, 5, 6]})
    box.policy |= {"idle": 0.4, "silence": 0.4}
    box.start()
    first = box.ready()
    again = box.wait(lambda now: now.phase == "ready" and now.restarts >= 1)
    assert again.engine_pid != first.engine_pid
    assert box.output.count("engine_proved") >= 2
    assert "proof failed: the answer changed: [4, 5, 6] now, [1, 2, 3] before" in box.output


def test_five_kills_end_the_box(make_box: MakeBox) -> None:
    box = make_box().start()
    seen: set[int] = set()
    for _ in range(5):
        state = box.wait(lambda now: now.phase == "ready" and now.engine_pid not in seen)
        assert state.engine_pid is not None
        seen.add(state.engine_pid)
        os.kill(state.engine_pid, signal.SIGKILL)
    assert box.ended() == 3
    assert box.everyone() == []
    final = box.state()
    assert final is not None
    assert (final.phase, final.exit_code) == ("failed", 3)
    assert "5 times" in final.detail


def test_an_engine_that_does_not_fit_ends_the_box_at_once(make_box: MakeBox) -> None:
    box = make_box(engine={"exit": 6})
    box.policy["linger"] = 1.5
    box.start()
    box.wait(lambda state: state.phase == "failed")
    assert box.health()[1]["phase"] == "failed", "it says why in the meantime"
    assert box.ended() == 6
    assert box.everyone() == []
    final = box.state()
    assert final is not None
    assert final.exit_code == 6
    assert "does not fit" in final.detail
    assert "last words 59" in final.detail
    assert final.restarts == 0
    assert len(final.log) == 50
    assert final.log[-1] == "scripted engine: last words 59"
    assert "last words 59" in box.output


def test_sigterm_is_a_clean_end(make_box: MakeBox, tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(10)
        box = make_box().start(NOTIFY_SOCKET=str(address))
        said = ""
        while "READY=1" not in said:
            said += systemd.recv(4096).decode() + "\n"
        assert "STATUS=load" in said
        assert "EXTEND_TIMEOUT_USEC=" in said
        assert box.process is not None
        box.process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in said:
            said += systemd.recv(4096).decode() + "\n"
        assert box.ended() == 0
    assert box.everyone() == []


def test_control_c_in_the_terminal_stops_everything(make_box: MakeBox) -> None:
    box = make_box().start()
    box.wait(lambda state: state.phase in ("load", "ready"))
    assert box.process is not None
    os.killpg(box.process.pid, signal.SIGINT)
    assert box.ended() == 0
    assert box.everyone() == []


def test_a_box_that_was_killed_starts_again(make_box: MakeBox) -> None:
    box = make_box().start()
    first = box.ready()
    assert box.process is not None
    box.process.send_signal(signal.SIGKILL)
    assert box.ended() == -9
    # supervisord dies with its parent; the next start ends what is still there, and waits for nothing else.
    box.start()
    second = box.wait(lambda state: state.phase == "ready" and state.engine_pid != first.engine_pid)
    assert second.engine_pid is not None
    assert len([p for p in box.everyone() if "tests.appliance.programs.engine" in p.cmdline()]) == 1
    # supervisord itself is killed: nobody restarts anything, so up ends it all with a failure.
    assert box.process is not None
    (supervisord,) = [p for p in box.everyone() if "supervisor.supervisord" in p.cmdline()]
    supervisord.kill()
    assert box.ended() == 3
    assert box.everyone() == []


def test_fetch_is_tried_again(make_box: MakeBox, tmp_path: Path) -> None:
    catalog = tmp_path / "models.toml"
    catalog.write_text(f'[models.tiny]\npath = "model.ninfer"\nbytes = 8\nsha256 = "{"0" * 64}"\nformat_version = 3\n')
    box = make_box(fetch={"failures": 2, "seconds": 3.0})
    box.model = "tiny"
    box.start(NINFER_CATALOG=str(catalog))
    seen = box.wait(lambda state: "fetch failed" in state.detail or state.phase == "ready")
    assert "status 1" in seen.detail
    moving = box.wait(lambda state: state.phase == "fetch" and state.done == 500)
    assert (moving.detail, moving.total, moving.unit) == ("download", 1000, "bytes")
    box.ready()
    assert (tmp_path / "fetch-tries").read_text() == "3"


def test_a_fetch_that_cannot_work_ends_the_box(make_box: MakeBox, tmp_path: Path) -> None:
    catalog = tmp_path / "models.toml"
    catalog.write_text(f'[models.tiny]\npath = "model.ninfer"\nbytes = 8\nsha256 = "{"0" * 64}"\nformat_version = 3\n')
    box = make_box(fetch={"failures": 9, "exit": 2})
    box.model = "tiny"
    box.start(NINFER_CATALOG=str(catalog))
    assert box.ended() == 2
    assert (tmp_path / "fetch-tries").read_text() == "1"


def test_a_plan_that_does_not_fit_ends_the_box(make_box: MakeBox) -> None:
    box = make_box(plan={"refuse": "1 GiB short"}).start()
    assert box.ended() == 6
    final = box.state()
    assert final is not None
    assert final.detail == "1 GiB short"


def test_an_api_that_cannot_start_ends_the_box(make_box: MakeBox) -> None:
    box = make_box(api={"exit": 7})
    box.policy["exits"] = 2
    box.start()
    assert box.ended() == 3
    assert box.everyone() == []
    final = box.state()
    assert final is not None
    assert final.detail == "api ended 2 times within 600 s, the last time: status 7"


def test_a_wedged_engine_is_replaced(make_box: MakeBox) -> None:
    box = make_box(engine={"mute": True})
    box.policy["silence"] = 1.0
    box.start()
    first = box.ready()
    box.script("engine")
    second = box.wait(lambda state: state.phase == "ready" and state.engine_pid != first.engine_pid)
    assert second.restarts == 1
    assert "no answer from the engine for 1 s" in box.output


def test_an_answer_that_changed_is_no_proof(make_box: MakeBox) -> None:
    box = make_box().start()
    box.ready()
    assert box.command("stop").returncode == 0
    assert box.ended() == 0
    box.script("engine", answer=[1, 2, 4])
    box.policy["exits"] = 2
    box.start()
    assert box.ended() == 3
    final = box.state()
    assert final is not None
    assert "the answer changed: [1, 2, 4] now, [1, 2, 3] before" in final.detail


def test_a_taken_port_is_refused_by_name(make_box: MakeBox) -> None:
    box = make_box()
    with socket.socket() as other:
        other.bind(("127.0.0.1", box.port))
        other.listen()
        box.start()
        assert box.ended() == 2
    assert f"port {box.port} is taken by {psutil.Process().name()} (pid {os.getpid()})" in box.output


def test_the_controller_may_die(make_box: MakeBox) -> None:
    box = make_box().start()
    before = box.ready()
    box.program("controller").kill()
    box.wait(lambda _: "engine_taken_over" in box.output)
    after = box.ready()
    assert after.engine_pid == before.engine_pid
    assert after.plan == before.plan
    assert box.health()[0] == 200
