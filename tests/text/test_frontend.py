"""Loading: the startup inventory names what is missing or damaged (spec/cases.md D10); size and speed."""

import json
import threading
import time
from pathlib import Path

import pytest

from engine.exits import ArtifactError
from engine.text import Frontend
from tests.text.conftest import ROLES, Resources


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "not UTF-8"])
def test_inventory(role: str, damage: str) -> None:
    content = Resources().resource("text", role)
    changed = {"missing": None, "empty": b"", "cut": content[:-1], "not UTF-8": content + b"\xff"}[damage]
    with pytest.raises(ArtifactError) as raised:
        Frontend.load(Resources({role: changed}))
    assert role in str(raised.value)


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({}, "None"),
        ({"eos_token_id": []}, "empty list"),
        ({"eos_token_id": 8192}, "8192 is not one of 8192"),
        ({"eos_token_id": [1, -1]}, "-1"),
        ({"eos_token_id": "5"}, "'5'"),
        ({"eos_token_id": True}, "True"),
    ],
)
def test_bad_stop_ids_are_named(record: dict[str, object], named: str) -> None:
    with pytest.raises(ArtifactError, match=r"generation_config\.json") as raised:
        Frontend.load(Resources({"generation_config.json": json.dumps(record).encode()}))
    assert named in str(raised.value)


def test_stop_ids(frontend: Frontend) -> None:
    assert [frontend.vocabulary[token_id] for token_id in frontend.stop_ids] == [b"<|im_end|>", b"<|endoftext|>"]
    single = Frontend.load(Resources({"generation_config.json": b'{"eos_token_id": 7}'}))
    assert single.stop_ids == (7,)
    output = single.output(thinking=False)
    assert [*output.push([7]), *output.finish()] == []


def test_an_ordinary_entry_that_is_also_a_control_token_is_refused() -> None:
    tokenizer = json.loads(Resources().resource("text", "tokenizer.json"))
    place = tokenizer["model"]["vocab"]["th"]
    tokenizer["added_tokens"].insert(0, {"id": place, "content": "th", "special": True})
    with pytest.raises(ArtifactError, match="encodes to an added token"):
        Frontend.load(Resources({"tokenizer.json": json.dumps(tokenizer).encode()}))


def test_a_tokenizer_the_library_cannot_load_is_named() -> None:
    tokenizer = json.loads(Resources().resource("text", "tokenizer.json"))
    tokenizer["model"]["merges"].append(["no such", "pair"])
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        Frontend.load(Resources({"tokenizer.json": json.dumps(tokenizer).encode()}))


def test_a_long_prompt_is_linear_and_leaves_other_threads_running(frontend: Frontend) -> None:
    beats = 0
    done = threading.Event()

    def beat() -> None:
        nonlocal beats
        while not done.wait(0.002):
            beats += 1

    frontend.prepare([{"role": "user", "content": "warm up"}])
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        begin, before = time.monotonic(), beats
        ids = frontend.encode("some <b> words and a number 17, " * 40_000)
        seconds, heard = time.monotonic() - begin, beats - before
    finally:
        done.set()
        thread.join()
    assert len(ids) > 100_000
    assert seconds < 20
    assert heard > 5


@pytest.mark.parametrize(
    "text", ["a" * 300_000, "<" * 300_000, " " * 300_000, "\n " * 150_000, "e" + "\u0301" * 100_000]
)
def test_awkward_prompts_are_not_quadratic(frontend: Frontend, text: str) -> None:
    begin = time.monotonic()
    frontend.prepare([{"role": "user", "content": "x" + text + "x"}])
    assert time.monotonic() - begin < 10


def test_committed_files_are_small() -> None:
    folder = Path(__file__).parents[2] / "etc" / "nano"
    assert sum((folder / role).stat().st_size for role in ROLES) < 1_000_000
