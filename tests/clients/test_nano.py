"""A real client against the real engine with the embedded model. Nothing is scripted, so what it says is noise."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.box import ROOT, Box
from tests.clients.programs import FOLDER, OPENCODE, Place, binaries

CONTEXT = 32_768  # as much as the model was made for
LONGEST_ANSWER = 16

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(binaries() is None, reason=f"needs the clients: tools/nightly_clients.sh, then {FOLDER}"),
]


def test_a_completion(tmp_path: Path) -> None:
    box = Box(tmp_path)
    shutil.copy(ROOT / "etc" / "nano" / "nano.ninfer", box.artifact)
    log = tmp_path / "requests.jsonl"
    flags = {
        "--device": "cpu", "--port": box.port, "--max-context": CONTEXT, "--kv-capacity": 2 * CONTEXT,
        "--max-concurrency": 2, "--max-output-tokens": LONGEST_ANSWER, "--request-log-jsonl": log,
    }  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "engine.cli.serve",
        str(box.artifact),
        "--no-thinking",
        *(str(part) for flag in flags.items() for part in flag),
    ]
    try:
        with box.api_log.open("ab") as file:
            box.api = subprocess.Popen(command, cwd=ROOT, stderr=file)
        box.wait()
        place = Place(tmp_path / "home", tmp_path / "work", f"http://127.0.0.1:{box.port}", CONTEXT)
        done = OPENCODE.run(place, "Say hello.")
    finally:
        box.stop()
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{box.api_log.read_text()[-3000:]}"
    said = OPENCODE.said(done.stdout)
    records = map(json.loads, log.read_text().splitlines())
    ended = [one for one in records if one["event"] in ("request_done", "request_error", "request_rejected")]
    assert {one["event"] for one in ended} == {"request_done"}
    results = [one["result"] for one in ended if one["request"]["tool_count"]]
    seconds = [one["timings_seconds"]["ttft"] for one in ended if one["request"]["tool_count"]]
    sizes = [one["prompt_tokens"] for one in results]
    sys.stdout.write(f"prompts of {sizes} tokens, first token after {seconds} s: {said.text!r}\n")
    assert said.prompt_tokens == sum(one["prompt_tokens"] for one in results)
    assert said.completion_tokens == sum(one["completion_tokens"] for one in results) <= LONGEST_ANSWER
