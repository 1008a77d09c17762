"""The box needs no system call that its unit forbids (case C5), seen by tracing a real start and a real answer.

Only forbidden calls are traced, so that the box runs at its usual speed. What CUDA adds needs a card to be seen.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.packaging.units import read_unit

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not (shutil.which("strace") and shutil.which("systemd-analyze")),
        reason="needs strace and systemd-analyze: tools/nightly_packages.sh",
    ),
]


def _groups() -> dict[str, set[str]]:
    command = ["systemd-analyze", "--no-pager", "syscall-filter"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    groups: dict[str, set[str]] = {}
    members: set[str] = set()
    for line in text.splitlines():
        if line.startswith("@"):
            members = groups.setdefault(line.strip(), set())
        elif line.startswith("    ") and not line.strip().startswith("#"):
            members.add(line.strip())
    return groups


def _members(groups: dict[str, set[str]], name: str) -> set[str]:
    if not name.startswith("@"):
        return {name}
    return {call for member in groups[name] for call in _members(groups, member)}


def allowed_calls(filters: Sequence[str]) -> set[str]:
    """What `SystemCallFilter=` lines leave, in their order; the first one makes it a list of what is allowed."""
    groups = _groups()
    allowed = _members(groups, "@default")
    for line in filters:
        calls = {call for name in line.removeprefix("~").split() for call in _members(groups, name)}
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(url: str, process: subprocess.Popen[bytes], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"the box did not become ready (status {process.poll()})")


def _ask(url: str) -> int:
    body = {"model": "nano", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


def test_the_filter_is_read_as_systemd_reads_it() -> None:
    assert {"read", "chown", "mbind"} <= allowed_calls(["@system-service"])
    assert "chown" not in allowed_calls(["@system-service", "~@privileged"])
    assert "chown" in allowed_calls(["@system-service", "~@privileged", "@chown"])
    assert "mount" not in allowed_calls(["@system-service"])


@pytest.mark.timeout(600)
def test_the_box_starts_answers_and_stops_within_its_filter(tmp_path: Path) -> None:
    service = read_unit((ROOT / "etc/systemd/ninfer.service").read_text())["Service"]
    allowed = allowed_calls(service["SystemCallFilter"])
    trace = tmp_path / "trace"
    port = _free_port()
    box = [sys.executable, "-m", "appliance.cli", "up", "--model", "nano", "--device", "cpu"]
    box += ["--home", str(tmp_path / "home"), "--port", str(port)]
    # A question mark: strace may not know the call on this machine.
    names = ",".join(f"?{call}" for call in sorted(allowed))
    command = ["strace", "--follow-forks", "--seccomp-bpf", "--quiet=all", "-e", "signal=none", "-o", str(trace)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-e", f"trace=!{names}", *box], stdout=log, stderr=log, cwd=ROOT, env=environ
        )
    try:
        _wait(f"http://127.0.0.1:{port}", process, 300)
        assert _ask(f"http://127.0.0.1:{port}") == 4
    finally:
        # strace passes it on by ending: its child is the box, so that one is told.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGTERM)
        status = process.wait(timeout=120)
    assert status == 0, (tmp_path / "log").read_text()[-3000:]
    assert trace.read_text() == ""
