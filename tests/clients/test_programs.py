"""The real command-line clients, one-shot, against the real API: a completion, and a file written by a tool call."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.box import Box, running
from tests.clients.coding_engine import DONE, GREETING
from tests.clients.programs import FOLDER, PROGRAMS, Place, Program, binaries

CONTEXT = 262_144
WORDS = "the tool did it"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(binaries() is None, reason=f"needs the clients: tools/nightly_clients.sh, then {FOLDER}"),
]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    folder = tmp_path_factory.mktemp("box")
    engine = {"lanes": 4, "pending": 16, "context": CONTEXT, "module": "tests.clients.coding_engine"}
    with running(folder, engine, request_log_jsonl=str(folder / "requests.jsonl")) as made:
        yield made


def records(box: Box) -> list[dict[str, Any]]:
    """What the request log holds about requests that ended."""
    lines = map(json.loads, (box.folder / "requests.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] in ("request_done", "request_error", "request_rejected")]


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    found: Program = request.param
    return found


# Claude Code asks for thoughts to be hidden, is told that they are not (spec/serving.md §9), and asks again without.
REFUSED = {"claude-code": {"thinking_display_not_supported"}}


def run(box: Box, program: Program, folder: Path, prompt: str) -> tuple[str, list[str]]:
    """What the client said in the end, and what the engine did; both sides must have counted the same tokens."""
    before, earlier = len(box.seen("answer")), len(records(box))
    place = Place(folder / "home", folder / "work", f"http://127.0.0.1:{box.port}", CONTEXT)
    done = program.run(place, prompt)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{box.api_log.read_text()[-3000:]}"
    ended = records(box)[earlier:]
    assert not [one for one in ended if one["event"] == "request_error"]
    assert {one["error"]["code"] for one in ended if one["event"] == "request_rejected"} <= REFUSED.get(
        program.name, set()
    )
    answered = [one for one in ended if one["event"] == "request_done"]
    # Requests for a title declare no tools and are in no account; those of other agents are.
    results = [one["result"] for one in answered if one["request"]["tool_count"]]
    said = program.said(done.stdout)
    assert said.prompt_tokens == sum(one["prompt_tokens"] for one in results)
    assert said.completion_tokens == sum(one["completion_tokens"] for one in results)
    sizes = [one["prompt_tokens"] for one in results]
    sys.stdout.write(f"{program.name}: {len(ended)} requests, prompts of {sizes} tokens\n")
    return said.text, [seen["done"] for seen in box.seen("answer")[before:]]


def test_a_completion(box: Box, program: Program, tmp_path: Path) -> None:
    said, did = run(box, program, tmp_path, "Say hello.")
    assert said == GREETING
    assert set(did) == {"greet"}


def test_a_file_written_by_a_tool(box: Box, program: Program, tmp_path: Path) -> None:
    file = tmp_path / "work" / "note.txt"
    said, did = run(box, program, tmp_path, f"Please write {file} saying {WORDS}.")
    assert file.read_text().strip() == WORDS
    assert said == DONE
    assert [one for one in did if one != "greet"] == [next(one for one in did if one.startswith("call ")), "finish"]
