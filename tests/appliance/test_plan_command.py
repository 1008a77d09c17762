"""`ninfer-appliance plan` as a process, with described machines."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.machine import Machine
from appliance.plan_command import main
from engine.plan import GIB
from tests.appliance.described import card_3090, machine

ENVIRON = {key: value for key, value in os.environ.items() if not key.startswith("NINFER_")}


def described(folder: Path, found: Machine) -> str:
    path = folder / "machine.json"
    path.write_text(json.dumps(found.as_dict()))
    return str(path)


def home(folder: Path) -> dict[str, str]:
    """The environment of a box that keeps everything in `folder`."""
    return {"NINFER_HOME": str(folder)}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "appliance.plan_command", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRON, timeout=60)


def test_the_plan_of_a_3090_beside_a_desktop(tmp_path: Path) -> None:
    """Everything a person needs: rung, lanes, ledger, what was rejected and why, what this version lacks."""
    done = run("qwen38-27b", "--machine", described(tmp_path, machine(card_3090(1.3))))
    assert done.returncode == 0, done.stderr
    text = done.stdout
    for fact in (
        "NVIDIA GeForce RTX 3090 (cuda:0): 24576.0 MiB",
        "reserved by the driver 310.0",
        "qwen38-27b: 196608 tokens, 1 lane, pool of 196608 tokens, rk4v4, speculation dflash2 K7 + draft head",
        "reduced: --max-context 262144 → 196608",
        "runtime reservation requires",
        "plasmashell 4242",
        "projections for sm_86",
        "it lacks kv:rk4v4, speculation:dflash2",
    ):
        assert fact in text
    rows = {line.split("  ")[1].strip(): line.split()[-1] for line in text.splitlines() if line.startswith("  ")}
    assert rows["KV pages"] == "3360.0"
    assert {"weights", "state images", "workspace", "graphs", "planned", "left"} <= rows.keys()
    rejected = text.split("rejected (MiB):")[1].splitlines()[2].split()
    assert rejected[:2] == ["262144", "1"]
    assert done.stderr == ""


def test_json_is_complete(tmp_path: Path) -> None:
    found = machine(card_3090(1.3))
    done = run("qwen36-35b-a3b", "--machine", described(tmp_path, found), "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["machine"] == json.loads(json.dumps(found.as_dict()))
    assert record["planned_bytes"] == sum(record["ledger"].values()) <= record["free_bytes"]
    assert record["lanes"] < 3
    assert [change["name"] for change in record["reduced"]][-1] == "max_concurrency"
    assert "kv:rk4v4" in record["unsupported"]
    assert all(row["short"] > 0 for row in record["rejected"])


def test_refusals_end_with_the_status_of_their_kind(tmp_path: Path) -> None:
    busy = described(tmp_path, machine(card_3090(3.0)))
    done = run("qwen38-27b", "--machine", busy, "--max-context", "262144")
    assert done.returncode == 6
    assert "runtime reservation requires" in done.stderr
    assert "What fits: --max-context" in done.stderr
    assert "rejected (MiB):" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["qwen38-27b", "--profile", "fast"], 2, "it has tuned"),
        (["qwen39"], 2, "the catalog has"),
        (["qwen38-27b", "--spec", "mtp"], 2, "--spec is not in this version"),
        (["qwen38-27b", "--machine", "/nowhere.toml"], 2, "/nowhere.toml"),
        (["./nowhere.ninfer"], 2, "no such file"),
        (["qwen38-27b", "--device", "cpu"], 4, "--device cpu"),
        (["qwen38-27b", "--device", "3"], 4, "there is no such card"),
        (["qwen38-27b", "--kv-capacity", "100", "--max-context", "8192"], 2, "use at least 8192"),
    ],
)
def test_bad_input(
    arguments: list[str], status: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--machine" not in arguments:
        arguments = [*arguments, "--machine", described(tmp_path, machine(card_3090()))]
    assert main(arguments, home(tmp_path), io.StringIO()) == status
    assert words in capsys.readouterr().err


def test_json_of_a_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    busy = described(tmp_path, machine(card_3090(3.0)))
    assert main(["qwen38-27b", "--machine", busy, "--max-context", "262144", "--json"], home(tmp_path), out) == 6
    record = json.loads(out.getvalue())
    assert record["nearest"]["max_context"] < 262_144
    assert record["rejected"][0]["short"] > 0
    assert "runtime reservation requires" in record["error"]
    assert capsys.readouterr().err


def test_reference_constants_can_be_asked_for(tmp_path: Path) -> None:
    out = io.StringIO()
    card = described(tmp_path, machine(card_3090()))
    arguments = ["qwen38-27b", "--machine", card, "--profile", "tuned-none", "--constants", "reference", "--json"]
    assert main(arguments, home(tmp_path), out) == 0
    record = json.loads(out.getvalue())
    assert record["constants"]["name"] == "reference"
    assert record["ledger"]["graphs"] == record["lanes"] * 12 << 20


def test_a_terminal_gets_tables(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    assert main(["qwen38-27b", "--machine", described(tmp_path, machine(card_3090(1.3)))], home(tmp_path), out) == 0
    assert "┃" in out.getvalue()
    assert "196608" in out.getvalue()


def test_the_box_is_planned_from_the_environment(tmp_path: Path) -> None:
    out = io.StringIO()
    roomy = described(tmp_path, machine(card_3090()))
    environ = home(tmp_path) | {"NINFER_MODEL": "qwen36-27b", "NINFER_CONTEXT": "8192", "NINFER_KV_CAPACITY": "auto"}
    assert main(["--machine", roomy, "--json"], environ, out) == 0
    record = json.loads(out.getvalue())
    assert (record["model"], record["max_context"]) == ("qwen36-27b", 8192)
    assert record["kv_capacity"] == 2 * 8192
    assert record["left_bytes"] >= record["headroom_bytes"] == GIB


def test_the_settings_file_counts(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('max-context = 262144\nmodel = "qwen38-27b"\n')
    out = io.StringIO()
    assert main(["--machine", described(tmp_path, machine(card_3090(3.0)))], home(tmp_path), out) == 6
