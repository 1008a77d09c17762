"""A box of real processes (up, supervisord, controller) around scripted programs, for tests."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from appliance.processes import RUN_VARIABLE
from engine.state_file import State, read_state

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"backoff": 0.05, "linger": 0.3, "proof": 5.0}


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Box:
    """One home, one `up` at a time."""

    def __init__(self, folder: Path, **script: dict[str, Any]) -> None:
        self.folder, self.home = folder, folder / "home"
        # Sockets need short paths.
        self.run = Path(tempfile.mkdtemp(prefix="box-"))
        self.port = free_port()
        self.policy: dict[str, float] = dict(QUICK)
        self.output = ""
        self.process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.artifact = folder / "model.ninfer"
        self.artifact.write_bytes(b"scripted")
        self.model = str(self.artifact)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("NINFER_")},
            "XDG_RUNTIME_DIR": str(self.run),
            "SCRIPT_FOLDER": str(folder),
            "PYTHONPATH": str(ROOT),
        }
        for program, behaviour in script.items():
            self.script(program, **behaviour)

    def script(self, program: str, **behaviour: Any) -> None:
        """Tell a program how to behave from its next start on."""
        (self.folder / f"{program}.json").write_text(json.dumps(behaviour))

    def start(self, **environment: str) -> "Box":
        """Start `up`."""
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", *self.up(), *self.flags()],
            cwd=ROOT,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()
        return self

    def up(self) -> list[str]:
        """The module that is `up`, and its first arguments."""
        return ["tests.appliance.programs.up", json.dumps(self.policy)]

    def flags(self) -> list[str]:
        """The flags of this box."""
        return ["--home", str(self.home), "--model", self.model, "--port", str(self.port)]

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `ninfer-appliance` on this home."""
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "appliance.cli", *words, *self.flags()],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def state(self) -> State | None:
        """What state.json says now."""
        return read_state(self.home / "state" / "state.json")

    def wait(self, condition: Callable[[State], object], seconds: float = 30.0) -> State:
        """The first state that fulfils the condition."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.state()
            if state is not None and condition(state):
                return state
            assert self.process is None or self.process.poll() is None, f"up ended: {self.output}"
            time.sleep(0.02)
        raise AssertionError(f"still {self.state()} after {seconds} s; output:\n{self.output}")

    def ready(self) -> State:
        """Wait until it is ready."""
        return self.wait(lambda state: state.phase == "ready")

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of /health; status 0 when nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as answer:
                return int(answer.status), json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())
        except (urllib.error.URLError, ConnectionError):
            return 0, {}

    def ended(self, seconds: float = 30.0) -> int:
        """Wait for the end of `up`; its status."""
        assert self.process is not None
        assert self._reader is not None
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def everyone(self) -> list[psutil.Process]:
        """Every process of this box but `up`, wherever it hangs in the process tree."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(RUN_VARIABLE, "").startswith(str(self.run)):
                    found.append(process)
        return found

    def program(self, name: str) -> psutil.Process:
        """A scripted program."""
        (process,) = [
            p for p in self.everyone() if any(word == f"tests.appliance.programs.{name}" for word in p.cmdline())
        ]
        return process

    def close(self) -> None:
        """End whatever is left, after a test that failed."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(5)
        for process in self.everyone():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self.process is not None:
            assert self._reader is not None
            self._reader.join(5)
        shutil.rmtree(self.run)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.output += line
