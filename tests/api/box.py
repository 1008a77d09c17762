"""Starts the API and the scripted engine as processes, and talks to them over real sockets."""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine.api.config import ApiConfig
from engine.core.config import EngineConfig

ROOT = Path(__file__).parents[2]
PATIENCE = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Reply:
    """Status, headers and body of one answer."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers = response.status, response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        return found

    @property
    def events(self) -> list[Any]:
        """The JSON of every data line; strict about frames."""
        frames = self.body.decode().split("\n\n")
        assert frames.pop() == ""
        assert all(frame.startswith((": ", "data: ", "event: ")) and "\n" not in frame for frame in frames)
        data = [frame.removeprefix("data: ") for frame in frames if frame.startswith("data: ")]
        return [one if one == "[DONE]" else json.loads(one) for one in data]


class Box:
    """One API process and its engine."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.port = folder, free_port()
        self.socket = folder / "engine.sock"
        self.artifact = folder / "nano.ninfer"
        self.config = ApiConfig(
            artifact=str(self.artifact), socket=str(self.socket), port=self.port, log_level="info", **settings
        )
        self.api: subprocess.Popen[bytes] | None = None
        self.engine: subprocess.Popen[bytes] | None = None
        self.engine_log = folder / "engine.log"
        self.api_log = folder / "api.log"

    def start_api(self, *arguments: str) -> None:
        self.artifact.touch()
        file = self.folder / "api.json"
        file.write_bytes(msgspec.json.encode(self.config))
        with self.api_log.open("ab") as log:
            self.api = subprocess.Popen(
                [sys.executable, "-m", "tests.api.server_process", file, *arguments], cwd=ROOT, stderr=log
            )

    def start_engine(
        self,
        *,
        lanes: int = 2,
        pending: int = 2,
        context: int = 2048,
        waits: bool = False,
        module: str = "tests.api.scripted_engine",
    ) -> None:
        config = EngineConfig(artifact=self.artifact, socket=self.socket, lanes=lanes, max_pending=pending,
                              max_context=context, kv_capacity=context)  # fmt: skip
        file = self.folder / "engine.json"
        file.write_bytes(msgspec.json.encode(config, enc_hook=str))
        command = [sys.executable, "-m", module, "--config", str(file), *(["--wait"] * waits)]
        if self.engine is not None:
            self.engine.wait()
        with self.engine_log.open("ab") as log:
            self.engine = subprocess.Popen(command, cwd=ROOT, stdout=log)

    def kill_engine(self) -> None:
        assert self.engine is not None
        self.engine.send_signal(signal.SIGKILL)
        self.engine.wait()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        patience: float = PATIENCE,
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        if self.config.tls_certificate is not None:
            trust = ssl.create_default_context(cafile=self.config.tls_certificate)
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=trust)
        with contextlib.closing(connection):
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            return Reply(connection.getresponse())

    def chat(self, script: dict[str, Any] | None = None, **fields: Any) -> Reply:
        """Ask for what the script says."""
        return self.request("POST", "/v1/chat/completions", chat_body(script, **fields))

    def wait(self, status: int = 200, phase: str | None = None) -> Reply:
        """Wait until /health answers `status` (and says `phase`)."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with contextlib.suppress(OSError, http.client.HTTPException):
                reply = self.request("GET", "/health")
                if reply.status == status and (phase is None or reply.json["phase"] == phase):
                    return reply
            time.sleep(0.05)
        raise AssertionError(f"/health did not say {status} {phase}:\n{self.api_log.read_text()}")

    def seen(self, event: str) -> list[dict[str, Any]]:
        """What the engine printed about `event` so far."""
        lines = [json.loads(line) for line in self.engine_log.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def await_seen(self, event: str, count: int) -> dict[str, Any]:
        """Wait for the `count`-th such event."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if len(self.seen(event)) >= count:
                return self.seen(event)[count - 1]
            time.sleep(0.02)
        raise AssertionError(f"no {event}:\n{self.engine_log.read_text()}\n{self.api_log.read_text()}")

    def stop(self) -> None:
        for process in (self.api, self.engine):
            if process is not None and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
                process.kill()
                process.wait()


@contextlib.contextmanager
def running(folder: Path, engine: dict[str, Any] | None = None, **settings: Any) -> Iterator[Box]:
    """A box that serves."""
    box = Box(folder, **settings)
    try:
        box.start_api()
        box.start_engine(**(engine or {}))
        box.wait()
        yield box
    finally:
        box.stop()


def chat_body(script: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    text = "hello" if script is None else json.dumps({"script": script}, ensure_ascii=False)
    return {"model": "nano", "messages": [{"role": "user", "content": text}], "enable_thinking": False} | fields
