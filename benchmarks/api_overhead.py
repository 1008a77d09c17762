"""What the API costs: `python -m benchmarks.api_overhead`; the result goes to benchmarks/results/api_overhead.json.

Measured with the scripted engine that works in rounds, over real sockets, with the caller in this process:

- token: from before the engine sends a round until the caller has read the event with that token, eight lanes at once,
  and the processor time that the API spends on one token, which other work on the machine changes little;
- submit: from the request for a prompt of 100,000 tokens until the engine has it, with a tokenizer of 248,320 entries,
  and what /health takes meanwhile.

All processes are on one machine and share its monotonic clock.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks import wide_tokenizer
from engine.text import Frontend
from engine.version import version
from tests.api.box import ROOT, Box
from tests.api.nano import Resources
from tests.load.callers import percentile, request
from tests.load.round_engine import INTERVAL

RESULT = ROOT / "benchmarks" / "results" / "api_overhead.json"
LANES = 8
LENGTH = 400  # tokens of an answer
WAVES = 5
PROMPT_TOKENS = 100_000
PROMPTS = 10
ENGINE = "tests.load.round_engine"


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    found = {name: round(1000 * percentile(seconds, share), 3) for name, share in shares.items()}
    return found | {"largest": round(1000 * max(seconds), 3), "count": len(seconds)}


async def arrivals(session: aiohttp.ClientSession, port: int, key: int) -> list[float]:
    """When each token of one answer was read."""
    path, body = request("chat", key, LENGTH)
    times = []
    async with session.post(f"http://127.0.0.1:{port}{path}", json=body) as response:
        assert response.status == 200
        async for line in response.content:
            now = time.monotonic()
            if line.startswith(b"data: {") and (choices := json.loads(line[6:])["choices"]):
                times += [now] * bool(choices[0]["delta"].get("content"))
    assert len(times) == LENGTH
    return times


def processor_seconds(box: Box) -> float:
    """What the API has used so far."""
    assert box.api is not None
    used = psutil.Process(box.api.pid).cpu_times()
    return used.user + used.system


async def token_overhead(box: Box) -> tuple[list[float], float]:
    """Seconds that the API added to each token, and processor seconds it used for one; the first wave warms up."""
    read: dict[int, list[float]] = {}
    begun = 0.0
    async with aiohttp.ClientSession() as session:
        for wave in range(WAVES + 1):
            if wave == 1:
                begun = processor_seconds(box)
            keys = [wave * LANES + lane for lane in range(LANES)]
            found = await asyncio.gather(*(arrivals(session, box.port, key) for key in keys))
            read |= dict(zip(keys, found, strict=True))
    used = (processor_seconds(box) - begun) / (WAVES * LANES * LENGTH)
    keys_of = {seen["id"]: seen["key"] for seen in box.seen("start")}
    sent: dict[int, list[float]] = defaultdict(list)
    for seen in box.seen("round"):
        for id in seen["ids"]:
            sent[keys_of[id]].append(seen["time"])
    added = [
        late - early
        for key in range(LANES, (WAVES + 1) * LANES)
        for early, late in zip(sent[key], read[key], strict=True)
    ]
    return added, used


def long_prompts(text: Path) -> list[str]:
    """Different pieces of the standard library's sources, each `PROMPT_TOKENS` tokens of the tokenizer in `text`."""
    front = Frontend.load(Resources(text))
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    library = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in sources)
    size = len(library) // (PROMPTS + 1)
    pieces = [library[begin : begin + size] for begin in range(0, size * (PROMPTS + 1), size)]
    cut = [front.encode(piece)[:PROMPT_TOKENS] for piece in pieces]
    assert all(len(ids) == PROMPT_TOKENS for ids in cut)
    return [b"".join(front.vocabulary[one] for one in ids).decode(errors="ignore") for ids in cut]


async def submit_times(box: Box, prompts: Sequence[str]) -> tuple[list[float], list[int], list[float]]:
    """Seconds until the engine had each long prompt, the prompts' tokens, and seconds that /health took meanwhile."""
    health: list[float] = []
    asked: list[float] = []

    async def watch(session: aiohttp.ClientSession) -> None:
        while True:
            begun = time.monotonic()
            async with session.get(f"http://127.0.0.1:{box.port}/health") as response:
                await response.read()
            health.append(time.monotonic() - begun)
            await asyncio.sleep(0.002)

    async with aiohttp.ClientSession() as session, aiohttp.ClientSession() as own:
        for number, prompt in enumerate(prompts):
            body = {"model": "nano", "max_tokens": 1, "messages": [{"role": "user", "content": prompt}]}
            data = json.dumps(body).encode()
            watching = asyncio.create_task(watch(own))
            asked.append(time.monotonic())
            async with session.post(f"http://127.0.0.1:{box.port}/v1/chat/completions", data=data) as response:
                await response.read()
                assert response.status == 200
            watching.cancel()
            await asyncio.wait([watching])
            if number == 0:
                health.clear()  # the first one warms up
    seen = box.seen("submit")
    times = [one["time"] - begun for one, begun in zip(seen, asked, strict=True)]
    return times[1:], [one["prompt"] for one in seen[1:]], health


def _output(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> dict[str, Any]:
    """Where it was measured, and with what."""
    revision = ["git", "rev-parse", "HEAD"]
    changed = ["git", "status", "--porcelain", "--untracked-files=no"]
    return {
        "version": version(),
        "commit": _output(revision),
        "changed": bool(_output(changed)),
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in ("aiohttp", "msgspec", "pydantic", "tokenizers")},
        "cores": os.cpu_count(),
        "processor": next(
            (
                line.partition(": ")[2]
                for line in Path("/proc/cpuinfo").read_text().splitlines()
                if "model name" in line
            ),
            platform.machine(),
        ),
        "load_average": os.getloadavg(),
    }


def measure() -> dict[str, Any]:
    """Run both."""
    result: dict[str, Any] = {"machine": machine(), "unit": "milliseconds"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        box = Box(folder)
        try:
            box.start_api()
            box.start_engine(lanes=LANES, pending=LANES, module=ENGINE)
            box.wait()
            times, used = asyncio.run(token_overhead(box))
        finally:
            box.stop()
        result["token"] = {
            "lanes": LANES,
            "round_ms": 1000 * INTERVAL,
            "added": summary(times),
            "processor": round(1000 * used, 4),
        }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        entries = wide_tokenizer.write(folder / "text")
        prompts = long_prompts(folder / "text")
        box = Box(folder)
        try:
            box.start_api(str(folder / "text"))
            box.start_engine(lanes=LANES, pending=LANES, context=262_144, module=ENGINE)
            box.wait()
            times, sizes, health = asyncio.run(submit_times(box, prompts))
        finally:
            box.stop()
        result["submit"] = {
            "tokenizer_entries": entries,
            "prompt_tokens": {"smallest": min(sizes), "largest": max(sizes)},
            "request_to_submit": summary(times),
            "health_meanwhile": summary(health),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.api_overhead", description="Measure what the API costs."
    )
    parser.add_argument("--output", type=Path, default=RESULT)
    output: Path = parser.parse_args().output
    result = json.dumps(measure(), indent=2)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(result + "\n")
    sys.stdout.write(result + "\n")


if __name__ == "__main__":
    main()
