"""The whole appliance with nothing scripted: the embedded model, the real engine, the official client, and kills."""

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest

from tests.appliance.box import Box


class RealBox(Box):
    """`ninfer-appliance up` as users start it, with the embedded model."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.model = "nano"

    def up(self) -> list[str]:
        return ["appliance.cli", "up"]

    def flags(self) -> list[str]:
        return [*super().flags(), "--max-concurrency", "2", "--max-context", "2048"]

    def engine_pid(self) -> int:
        """The running engine."""
        state = self.state()
        assert state is not None
        assert state.engine_pid is not None
        return state.engine_pid


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealBox]:
    running = RealBox(tmp_path_factory.mktemp("box"))
    running.start()
    running.wait(lambda state: state.phase == "ready" and "curl -N" in running.output, 120)
    yield running
    running.close()


@pytest.fixture
def client(box: RealBox) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{box.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def ask(client: openai.OpenAI, tokens: int = 12, seed: int = 1) -> openai.Stream[openai.types.chat.ChatCompletionChunk]:
    return client.chat.completions.create(
        model="nano",
        messages=[{"role": "user", "content": "Say something."}],
        max_tokens=tokens,
        seed=seed,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"enable_thinking": False, "ignore_eos": True},
    )


def test_every_boot_phase_was_shown_and_the_settings_with_their_origin(box: RealBox) -> None:
    for word in ("fetch", "probe", "plan", "load", "reserve", "warm-up", "prove", "ready at http"):
        assert word in box.output, word
    (row,) = [line.split() for line in box.output.splitlines() if line.startswith("--max-context ")]
    assert row == ["--max-context", "2048", "flag"]
    assert "random" in box.output, "what nano is must be said where the user sees it"


def test_the_printed_curl_line_streams_tokens(box: RealBox) -> None:
    (line,) = [line for line in box.output.splitlines() if "curl -N" in line]
    command = shlex.split(line[line.index("curl") :])
    done = subprocess.run([*command, "--silent", "--max-time", "60"], capture_output=True, text=True, check=True)
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert len(events) > 3
    assert all(json.loads(event)["object"] == "chat.completion.chunk" for event in events[:-1])


def test_the_official_client_streams_a_chat_with_usage(client: openai.OpenAI) -> None:
    chunks = list(ask(client))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    again = list(ask(client))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in again if chunk.choices) == text


def test_the_model_list_names_the_context_that_is_enforced(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.model_extra or {})[1]["context_length"] == 2048
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.chat.completions.create(model="nano", messages=[{"role": "user", "content": "word " * 4000}])


def test_a_killed_engine_ends_the_stream_and_comes_back_without_help(box: RealBox, client: openai.OpenAI) -> None:
    stream = iter(ask(client, tokens=1500))
    for _ in range(4):
        next(stream)
    engine = box.engine_pid()
    os.kill(engine, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(openai.APIError):
        for _ in stream:
            pass
    assert time.monotonic() - killed < 2.0
    code, body = box.health()
    assert code == 503
    assert body["phase"] in ("probe", "plan", "load", "reserve", "warm-up", "prove"), body
    state = box.wait(lambda state: state.phase == "ready" and state.engine_pid != engine, 120)
    assert state.restarts == 1
    deadline = time.monotonic() + 10
    while box.health()[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(list(ask(client))) > 3


def test_five_kills_end_the_whole_with_a_non_zero_status(box: RealBox) -> None:
    state = box.state()
    assert state is not None
    for _ in range(5 - state.restarts):
        state = box.wait(lambda state: state.engine_pid is not None and psutil.pid_exists(state.engine_pid), 120)
        os.kill(box.engine_pid(), signal.SIGKILL)
        dead = box.engine_pid()
        deadline = time.monotonic() + 60
        while (now := box.state()) is not None and now.engine_pid == dead and now.phase != "failed":
            assert time.monotonic() < deadline, now
            time.sleep(0.02)
    assert box.ended(60) == 3
    final = box.state()
    assert final is not None
    assert (final.phase, final.exit_code) == ("failed", 3)
    assert box.everyone() == []
