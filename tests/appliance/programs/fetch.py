# ruff: noqa: T201
"""A scripted fetch: fails as often as its script file says, then works."""

import json
import os
import sys
import time
from pathlib import Path

folder = Path(os.environ["SCRIPT_FOLDER"])
script_file = folder / "fetch.json"
script = json.loads(script_file.read_bytes()) if script_file.exists() else {}
tries = folder / "fetch-tries"
count = int(tries.read_text()) if tries.exists() else 0
tries.write_text(str(count + 1))
if count < script.get("failures", 0):
    sys.exit(int(script.get("exit", 1)))
print("progress what=download done=500 total=1000", flush=True)
time.sleep(script.get("seconds", 0.0))
print("progress what=verify done=1000 total=1000", flush=True)
