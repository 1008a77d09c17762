"""Many callers at once: right refusals, whole answers, and a server that stays awake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.box import ROOT, running
from tests.load.callers import CALLERS, IDLE

SECONDS = 8.0
HEALTH_P99_MS = 50.0


@pytest.mark.nightly
def test_more_callers_than_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = {"lanes": 8, "pending": 16, "module": "tests.load.round_engine"}
    with running(tmp_path, engine) as box:
        command = [sys.executable, "-m", "tests.load.callers", str(box.port), str(SECONDS)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        rounds = [len(seen["ids"]) for seen in box.seen("round")]
        assert box.request("GET", "/v1/load").json["requests"]["admitted"] == 0
    found = json.loads(done.stdout)
    with capsys.disabled():
        sys.stdout.write(f"\n{done.stdout}")
    assert CALLERS > 8 + 16
    assert found["idle_before"] == found["idle_after"] == {"200": IDLE}
    assert set(found["statuses"]["chat"]) == {"200", "429"}
    assert set(found["statuses"]["messages"]) == {"200", "529"}
    assert found["unhelpful_refusals"] == 0
    assert found["wrong"] == []
    assert found["tokens"] == sum(rounds)
    assert sorted(rounds)[len(rounds) // 2] == 8  # all lanes decode
    assert found["health"]["p99_ms"] < HEALTH_P99_MS
