"""The real process: with the embedded artifact, and killed without warning."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.artifact import Artifact
from engine.core.server import listen
from tests.core.client import Client, wait_for
from tests.core.harness import submit

ROOT = Path(__file__).parents[2]
NANO = ROOT / "etc" / "nano" / "nano.ninfer"
START_SECONDS = 60.0


@contextmanager
def engine(folder: Path, module: str, **config: Any) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A running engine and its socket; it is killed if it still runs at the end."""
    file, path = folder / "engine.json", folder / "s"
    file.write_text(json.dumps({"socket": str(path), **config}))
    with subprocess.Popen([sys.executable, "-m", module, "--config", str(file)], cwd=ROOT) as process:
        try:
            wait_for(path, START_SECONDS)
            yield process, path
        finally:
            process.kill()


def test_kill_closes_the_connection_at_once_and_the_socket_can_be_taken_over(tmp_path: Path) -> None:
    artifact = tmp_path / "fake.json"
    artifact.write_text(json.dumps({"counting": True, "delay": 0.02}))
    config = {"artifact": str(artifact), "max_context": 4096, "kv_capacity": 4096, "log_level": "error"}
    with engine(tmp_path, "tests.core.fake_engine", **config) as (process, path):
        with Client(path, START_SECONDS) as client:
            client.ready().send(submit([10], 4000))
            client.until(lambda: 1 in client.answers and len(client.answers[1].tokens) > 5)
            process.send_signal(signal.SIGKILL)
            begun = time.monotonic()
            client.read_to_the_end()
            assert time.monotonic() - begun < 1
            assert client.answers[1].finish is None
        assert process.wait(10) == -signal.SIGKILL
        assert path.exists()  # nobody was left to remove it
    listen(path).close()


def test_the_embedded_model_answers(tmp_path: Path) -> None:
    lanes = 8
    config = {
        "artifact": str(NANO),
        "max_context": 512,
        "kv_capacity": 512 * lanes,
        "lanes": lanes,
        "prefill_chunk": 128,
        "log_level": "warning",
    }
    with engine(tmp_path, "engine.core", **config) as (process, path), Client(path, START_SECONDS) as client:
        client.ready()
        assert client.hello is not None
        assert client.limits is not None
        with Artifact.open(NANO) as artifact:
            assert (client.hello.fingerprint, client.hello.model) == (artifact.fingerprint, artifact.name)
        assert client.limits.token_count > 256
        for component in ("pools", "token_counts"):
            planned, measured = client.limits.ledger[component]
            assert abs(measured - planned) < max(0.02 * planned, 1 << 20)

        def ask(id: int, kind: int) -> None:
            prompt = [(kind * 37 + i * 11) % 256 for i in range(5 + 60 * kind)]
            settings: dict[str, float] = {"temperature": 0.0} if kind == 0 else {"temperature": 1.0, "top_p": 0.95}
            client.send(submit(prompt, 8, id=id, seed=kind, presence_penalty=0.5, logprobs=2, **settings))

        for kind in range(lanes):
            ask(kind, kind)
        together = [client.answer(kind) for kind in range(lanes)]
        for kind in (0, 7):
            ask(100 + kind, kind)
            alone = client.answer(100 + kind)
            assert alone.tokens == together[kind].tokens
            # Equal to the bit, not just in the choice of tokens.
            assert [part.logprobs for part in alone.parts] == [part.logprobs for part in together[kind].parts]
        assert all(answer.finish == "length" and len(answer.tokens) == 8 for answer in together)
        process.terminate()
        client.read_to_the_end()
        assert process.wait(20) == 0


def test_a_bad_artifact_ends_with_status_5(tmp_path: Path) -> None:
    artifact, file = tmp_path / "bad.ninfer", tmp_path / "engine.json"
    artifact.write_bytes(b"NINFER" + b"\0" * 100)
    file.write_text(json.dumps({"socket": str(tmp_path / "s"), "artifact": str(artifact)}))
    result = subprocess.run(
        [sys.executable, "-m", "engine.core", "--config", str(file)], cwd=ROOT, capture_output=True, check=False
    )
    assert result.returncode == 5
    assert b"bad.ninfer" in result.stderr
    assert b"Traceback" not in result.stderr
    assert not (tmp_path / "s").exists()
