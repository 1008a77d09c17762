"""A whole start and end in this process, with the fake model: phases, refusals, signals, statuses."""

import io
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.core.boot import run
from engine.core.config import EngineConfig
from engine.core.server import listen
from engine.core.source import open_artifact
from engine.exits import ExitCode
from engine.log import configure
from tests.core.client import Client, wait_for
from tests.core.fake_engine import open_fake
from tests.core.harness import submit


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@dataclass
class Start:
    """Runs an engine on this thread and a client on another."""

    folder: Path

    def __call__(
        self, visit: Callable[[Client], None] | None = None, *, fake: dict[str, Any] | None = None, **changes: Any
    ) -> ExitCode:
        artifact = self.folder / "fake.json"
        artifact.write_text(json.dumps({"counting": True, **(fake or {})}))
        fields = {"max_context": 512, "kv_capacity": 1024, "lanes": 2, **changes}
        config = EngineConfig(artifact=artifact, socket=self.folder / "s", **fields)
        failures: list[BaseException] = []

        def client() -> None:
            try:
                wait_for(config.socket)
                with Client(config.socket) as visitor:
                    assert visit is not None
                    visit(visitor)
            except BaseException as error:
                failures.append(error)
                terminate()

        thread = threading.Thread(target=client)
        if visit is not None:
            thread.start()
        try:
            return run(config, open_fake)
        finally:
            if visit is not None:
                thread.join(20)
            assert not failures, failures
            assert not config.socket.exists()


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path)


def test_phases_limits_and_a_clean_end(start: Start) -> None:
    def visit(client: Client) -> None:
        client.ready()
        assert client.hello is not None
        assert (client.hello.model, client.hello.fingerprint) == ("fake", "f" * 32)
        phases = [boot.phase for boot in client.boots]
        assert phases[-3:] == ["reserve", "warm-up", "ready"]
        assert phases[0] == "load"
        loads = [boot.done for boot in client.boots if boot.phase == "load"]
        assert loads == sorted(loads)
        assert client.boots[0].total == 1000
        assert client.limits is not None
        assert client.limits.token_count == 64
        assert set(client.limits.ledger) == {"weights", "pools", "token_counts", "workspace"}
        assert client.limits.ledger["token_counts"][0] == 2 * 64 * 4
        client.send(submit([10], 4))
        assert client.answer(1).tokens == [11, 12, 13, 14]
        terminate()
        client.read_to_the_end()
        assert client.boots[-1].phase == "draining"

    assert start(visit, fake={"load_seconds": 0.5}) == ExitCode.CLEAN


def test_sigterm_lets_a_stream_end(start: Start) -> None:
    def visit(client: Client) -> None:
        client.ready().send(submit([10], 40))
        client.until(lambda: 1 in client.answers and len(client.answers[1].tokens) > 2)
        terminate()
        client.until(lambda: client.boots[-1].phase == "draining")
        with pytest.raises(OSError, match="No such file"):
            Client(start.folder / "s")
        client.send(submit([10], 4, id=2))
        refused = client.answer(2).rejected
        assert refused is not None
        assert refused.code == "unavailable"
        assert client.answer(1).finish == "length"
        client.read_to_the_end()

    assert start(visit, fake={"delay": 0.02}) == ExitCode.CLEAN


def test_the_end_after_sigterm_is_bounded(start: Start) -> None:
    def visit(client: Client) -> None:
        client.ready().send(submit([10], 500))
        client.until(lambda: 1 in client.answers and len(client.answers[1].tokens) > 2)
        terminate()
        answer = client.answer(1)
        assert (answer.finish, answer.last.error) == ("error", "the engine was stopped before this answer ended")
        client.read_to_the_end()

    assert start(visit, fake={"delay": 0.02}, drain_seconds=0.2) == ExitCode.CLEAN


def test_sigterm_while_loading(start: Start) -> None:
    def visit(client: Client) -> None:
        client.until(lambda: bool(client.boots))
        terminate()
        client.read_to_the_end()

    with pytest.raises(SystemExit) as caught:
        start(visit, fake={"load_seconds": 20})
    assert caught.value.code == 0


def test_failing_steps_end_the_process(start: Start) -> None:
    def visit(client: Client) -> None:
        client.ready()
        for id in range(3):
            client.send(submit([33], 4, id=id))
        client.read_to_the_end()
        assert client.boots[-1].phase == "failed"
        assert "3 steps in a row failed" in client.boots[-1].detail

    assert start(visit, fake={"poison": 33}) == ExitCode.RUNTIME


def test_a_warm_up_that_fails(start: Start) -> None:
    def visit(client: Client) -> None:
        client.until(lambda: client.boots[-1:] != [] and client.boots[-1].phase == "failed")
        assert "log" in client.boots[-1].detail  # and nothing of the inside

    assert start(visit, fake={"poison": 0, "load_seconds": 0.3}) == ExitCode.RUNTIME


@pytest.mark.parametrize(
    ("fake", "changes", "status", "words"),
    [
        ({"payload_bytes": 2**31 + 1}, {}, ExitCode.NO_DEVICE, ["2147483649", "2147483648", "nano"]),
        ({}, {"device": "7"}, ExitCode.NO_DEVICE, ["device 7", "CUDA devices are usable"]),
        ({"parameters": 10**15}, {}, ExitCode.DOES_NOT_FIT, ["weights of fake", "4000000000000000"]),
        (
            {"config": {"num_key_value_heads": 4, "head_dim": 2**30, "max_position_embeddings": 2**30}},
            {},
            ExitCode.DOES_NOT_FIT,
            ["runtime reservation requires", "KV pages", "no context fits"],
        ),
        (
            {"config": {"max_position_embeddings": 2**30}},
            {"max_context": 2**29, "kv_capacity": 2**29},
            ExitCode.DOES_NOT_FIT,
            ["runtime reservation requires", "a max_context and kv_capacity of"],
        ),
        (
            {"out_of_memory": True},
            {},
            ExitCode.DOES_NOT_FIT,
            ["runtime reservation requires", "phase warm-up", "max_context 512", "you tried to allocate"],
        ),
        ({"config": {"max_position_embeddings": 511}}, {}, ExitCode.CONFIGURATION, ["max_context is 512", "511"]),
    ],
)
def test_starts_that_are_refused(
    start: Start, fake: dict[str, Any], changes: dict[str, Any], status: ExitCode, words: list[str]
) -> None:
    lines = io.StringIO()
    configure("test", "error", stream=lines)
    try:
        assert start(fake=fake, **changes) == status
    finally:
        configure("test", "off")
    assert all(word in lines.getvalue() for word in words), lines.getvalue()


def test_a_missing_artifact_and_a_taken_socket(tmp_path: Path) -> None:
    config = EngineConfig(artifact=tmp_path / "absent.ninfer", socket=tmp_path / "s")
    assert run(config, open_artifact) == ExitCode.BAD_ARTIFACT
    listener = listen(config.socket)
    assert run(config, open_artifact) == ExitCode.CONFIGURATION
    listener.close()
