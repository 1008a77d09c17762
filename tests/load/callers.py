"""Load from a process of its own: `python -m tests.load.callers PORT SECONDS`, on loopback alone.

Idle keep-alive connections, callers that ask again and again over both protocols, and somebody who keeps asking for
/health. Prints one JSON object of what came of it.
"""

import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aiohttp

from tests.load.round_engine import text_of

IDLE = 200
CALLERS = 64
HEALTH_PAUSE = 0.01  # seconds
LONGEST_RETRY = 0.25  # seconds; the server asks for more, but then this would not be load
LENGTHS = (24, 64)  # tokens of an answer, from and below


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def request(protocol: str, key: int, length: int) -> tuple[str, dict[str, Any]]:
    """Path and body of a request for the answer to `key`."""
    body: dict[str, Any] = {"model": "nano", "stream": True, "max_tokens": length}
    body["messages"] = [{"role": "user", "content": f"key {key}"}]
    if protocol == "messages":
        return "/v1/messages", body | {"thinking": {"type": "disabled"}}
    return "/v1/chat/completions", body | {"enable_thinking": False, "stream_options": {"include_usage": True}}


async def events(response: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    """The JSON of all data lines."""
    data = [line[6:] async for line in response.content if line.startswith(b"data: ")]
    return [json.loads(one) for one in data if one.strip() != b"[DONE]"]


def read(protocol: str, found: list[dict[str, Any]]) -> tuple[str, int, bool]:
    """Text, completion tokens by the usage, and whether the stream came to its end."""
    if protocol == "messages":
        deltas = [one["delta"] for one in found if one["type"] == "content_block_delta"]
        usage = [one["usage"]["output_tokens"] for one in found if one["type"] == "message_delta"]
        return "".join(one["text"] for one in deltas), usage[-1], found[-1]["type"] == "message_stop"
    text = "".join(choice["delta"].get("content") or "" for one in found for choice in one["choices"])
    return text, found[-1]["usage"]["completion_tokens"], True


class Load:
    """What came of it."""

    def __init__(self, port: int, seconds: float) -> None:
        self.url, self.end = f"http://127.0.0.1:{port}", time.monotonic() + seconds
        self.statuses: dict[str, Counter[int]] = {"chat": Counter(), "messages": Counter()}
        self.wrong: list[str] = []
        self.health: list[float] = []
        self.tokens = 0
        self.unhelpful = 0  # refusals without Retry-After
        self.keys = itertools.count(1)

    async def call(self, session: aiohttp.ClientSession, protocol: str) -> None:
        while time.monotonic() < self.end:
            key = next(self.keys)
            length = LENGTHS[0] + key % (LENGTHS[1] - LENGTHS[0])
            path, body = request(protocol, key, length)
            async with session.post(self.url + path, json=body) as response:
                self.statuses[protocol][response.status] += 1
                if response.status != 200:
                    await response.read()
                    self.unhelpful += "Retry-After" not in response.headers
                    await asyncio.sleep(LONGEST_RETRY * (0.5 + key % 8 / 16))
                    continue
                text, used, whole = read(protocol, await events(response))
            self.tokens += used
            if text != text_of(key, length) or used != length or not whole:
                self.wrong.append(f"{protocol} key {key}: {used} of {length} tokens, {text[:200]!r}")

    async def watch(self, session: aiohttp.ClientSession) -> None:
        while time.monotonic() < self.end:
            begun = time.monotonic()
            async with session.get(f"{self.url}/health") as response:
                await response.read()
                assert response.status == 200
            self.health.append(time.monotonic() - begun)
            await asyncio.sleep(HEALTH_PAUSE)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """GET /health on an open connection; returns the status."""
    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))
    return int(head.split()[1])


async def main(port: int, seconds: float) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(IDLE)]
    before = [await ask(*one) for one in idle]
    load = Load(port, seconds)
    begun = time.monotonic()
    limits = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=limits) as session,
        aiohttp.ClientSession() as own,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(load.watch(own))
        for caller in range(CALLERS):
            group.create_task(load.call(session, "messages" if caller % 2 else "chat"))
    after = [await ask(*one) for one in idle]
    for _, writer in idle:
        writer.close()
    result = {
        "idle_before": Counter(before),
        "idle_after": Counter(after),
        "statuses": load.statuses,
        "unhelpful_refusals": load.unhelpful,
        "wrong": load.wrong,
        "tokens": load.tokens,
        "tokens_per_second": round(load.tokens / (time.monotonic() - begun), 1),
        "health": {
            "count": len(load.health),
            "p50_ms": round(1000 * percentile(load.health, 0.5), 3),
            "p99_ms": round(1000 * percentile(load.health, 0.99), 3),
            "largest_ms": round(1000 * max(load.health), 3),
        },
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
