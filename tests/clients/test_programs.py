"""The real command-line clients, one-shot, against the real API: a completion, and a file written by a tool call."""

import json
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


def ended(box: Box) -> list[dict[str, Any]]:
    """The records of the requests that ended so far."""
    lines = (box.folder / "requests.jsonl").read_text().splitlines()
    return [
        one for one in map(json.loads, lines) if one["event"] in ("request_done", "request_error", "request_rejected")
    ]


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    found: Program = request.param
    return found


def run(box: Box, program: Program, folder: Path, prompt: str) -> tuple[str, list[str]]:
    """What the client said, and what the engine did."""
    before, earlier = len(box.seen("answer")), len(ended(box))
    place = Place(folder / "home", folder / "work", f"http://127.0.0.1:{box.port}", CONTEXT)
    done = program.run(place, prompt)
    told = f"{done.stdout}\n{done.stderr}\n{box.api_log.read_text()[-3000:]}"
    assert done.returncode == 0, told
    records = ended(box)[earlier:]
    print(json.dumps(records))
    return program.said(done.stdout), [seen["done"] for seen in box.seen("answer")[before:]]


def test_a_completion(box: Box, program: Program, tmp_path: Path) -> None:
    said, did = run(box, program, tmp_path, "Say hello.")
    assert said == GREETING
    assert set(did) == {"greet"}


def test_a_file_written_by_a_tool(box: Box, program: Program, tmp_path: Path) -> None:
    file = tmp_path / "work" / "note.txt"
    said, did = run(box, program, tmp_path, f"Please write {file} saying {WORDS}.")
    assert file.read_text().strip() == WORDS
    assert DONE in said
    assert [one for one in did if one.startswith("call")] == [did[-2]]
    assert did[-1] == "finish"
