"""An engine without a model: `python -m tests.api.scripted_engine --config FILE [--wait]`, FILE an EngineConfig.

It speaks engine/protocol.py over a real socket. What it answers stands in the prompt: the last `{"script": …}` in it.
The members are those of `Script`. Lines it prints tell the test what it saw. With `--wait` it becomes ready on SIGUSR1.
An artifact called `exit-N` makes it end with status N at once.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.core.config import EngineConfig
from engine.protocol import (
    VERSION,
    AskStatistics,
    Boot,
    Cancel,
    ConstraintReport,
    EngineMessage,
    Hello,
    LaneTokens,
    Limits,
    Progress,
    Rejected,
    Statistics,
    Submit,
    Timings,
    Tokens,
    decode_client,
    encode,
    pack_ids,
    unpack_ids,
)
from tests.api.nano import FINGERPRINT, NAME, frontend

STEPS = 3
REPORT = ConstraintReport(complete=True, cache="hit", mask_positions=7, mask_upload_bytes=7168, mask_seconds=0.25)


class Script(msgspec.Struct, forbid_unknown_fields=True):
    """`text` is sent `each` tokens at a time, `delay` seconds apart, after `queue` and `prefill` seconds."""

    text: str = "ok"
    each: int = 1
    delay: float = 0.0
    queue: float = 0.0
    prefill: float = 0.0
    finish: str = "stop_id"
    die_after: int = -1  # tokens, then the process kills itself
    hang_after: int = -1  # tokens, then the process stops itself
    cached: int = 0  # tokens of the prompt that were reused
    reject: str = ""
    error: str = ""
    error_code: str = ""
    ids: list[int] = []


def script_of(prompt: str) -> Script:
    found = re.findall(r'\{"script": ?(\{.*?\})\}', prompt, re.DOTALL)
    return msgspec.json.decode(found[-1], type=Script) if found else Script()


def say(event: str, **values: object) -> None:
    sys.stdout.write(json.dumps({"event": event, "time": time.monotonic(), **values}) + "\n")
    sys.stdout.flush()


class Engine:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.boot = Boot(phase="load", detail="layers", done=1, total=4, unit="layers")
        self.rounds = self.running = 0
        self.writers: list[asyncio.StreamWriter] = []

    def script_for(self, prompt: str) -> Script:
        """What is answered to a prompt."""
        return script_of(prompt)

    def send(self, writer: asyncio.StreamWriter, message: EngineMessage) -> None:
        writer.write(encode(message))

    def ready(self) -> None:
        self.boot = Boot(phase="ready")
        for writer in self.writers:
            self.send(writer, self.limits)
            self.send(writer, self.boot)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.send(writer, Hello(version=VERSION, fingerprint=FINGERPRINT, model=NAME))
        if self.boot.phase == "ready":
            self.send(writer, self.limits)
        self.send(writer, self.boot)
        lanes: dict[int, asyncio.Task[None]] = {}
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                header = await reader.readexactly(5)
                message = decode_client(await reader.readexactly(int.from_bytes(header[:4], "little")))
                if isinstance(message, Submit):
                    lanes[message.id] = asyncio.create_task(self.answer(writer, message))
                elif isinstance(message, Cancel):
                    say("cancel", id=message.id)
                    lanes[message.id].cancel()
                elif isinstance(message, AskStatistics):
                    self.send(writer, Statistics(rounds=self.rounds, running=self.running, pages_capacity=8))
        for lane in lanes.values():
            lane.cancel()
        self.writers.remove(writer)
        writer.close()

    async def answer(self, writer: asyncio.StreamWriter, submit: Submit) -> None:
        front = frontend()
        prompt = unpack_ids(submit.token_ids).tolist()
        script = self.script_for(b"".join(front.vocabulary[one] for one in prompt).decode())
        say("submit", id=submit.id, **msgspec.to_builtins(submit.sampling), max_tokens=submit.max_tokens,
            stop_ids=submit.stop_ids, deadline=submit.deadline_seconds, prompt=len(prompt),
            salt=submit.cache_salt.hex(),
            stops=[stop.decode() for stop in submit.stop_strings],
            thinking=None if submit.thinking is None else [
                submit.thinking.close.decode(), submit.thinking.budget,
                b"".join(front.vocabulary[one] for one in unpack_ids(submit.thinking.wrap_up)).decode(),
            ],
            constraint=None if submit.constraint is None else submit.constraint.decode())  # fmt: skip
        self.running += 1
        try:
            await self.play(writer, submit, script, len(prompt))
        finally:
            self.running -= 1

    async def play(self, writer: asyncio.StreamWriter, submit: Submit, script: Script, prompt: int) -> None:
        if script.reject:
            self.send(writer, msgspec.convert({"type": "rejected", "id": submit.id, "code": script.reject,
                                               "message": "scripted"}, Rejected))  # fmt: skip
            return
        await asyncio.sleep(script.queue)
        say("admitted", id=submit.id)
        for step in range(STEPS + 1):
            self.send(
                writer, Progress(id=submit.id, processed=prompt * step // STEPS, total=prompt, cached=script.cached)
            )
            await asyncio.sleep(script.prefill / STEPS)
        front = frontend()
        ids = script.ids or front.encode(script.text)
        finish: str | None = script.finish
        if finish == "stop_id":
            ids = [*ids, front.stop_ids[0]]
        if len(ids) > submit.max_tokens:
            ids, finish = ids[: submit.max_tokens], "length"
        sent, spoken = 0, b""
        while sent < len(ids):
            if 0 <= script.die_after <= sent:
                os.kill(os.getpid(), signal.SIGKILL)
            if 0 <= script.hang_after <= sent:
                os.kill(os.getpid(), signal.SIGSTOP)
            await asyncio.sleep(script.delay)
            now = ids[sent : sent + script.each]
            sent += len(now)
            spoken += b"".join(front.vocabulary[one] for one in now)
            stop = next((one for one in submit.stop_strings if one in spoken), b"")
            self.rounds += 1
            last = bool(stop) or sent >= len(ids)
            timings = (
                Timings(queue=0.001, prefill=0.002, decode=0.003, prefill_tokens=prompt, cached_tokens=script.cached)
                if last
                else None
            )
            lane = {
                "id": submit.id,
                "token_ids": pack_ids(now),
                "finish": ("stop_string" if stop else "error" if script.error else finish) if last else None,
                "stop": stop,
                "error": script.error if last else "",
                "error_code": script.error_code if last else "",
                "constraint": REPORT if last and submit.constraint is not None else None,
                "timings": timings,
            }
            self.send(writer, Tokens(round=self.rounds, lanes=(msgspec.convert(lane, LaneTokens),)))
            if last:
                return


async def main(config: EngineConfig, *, waits: bool, make: Callable[[Limits], Engine] = Engine) -> None:
    tokens = frontend().token_count
    context = config.max_context
    engine = make(Limits(max_context=context, kv_capacity=config.kv_capacity, lanes=config.lanes,
                         max_pending=config.max_pending, token_count=tokens))  # fmt: skip
    config.socket.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(engine.connection, config.socket)
    say("listening", key="NINFER_API_KEY" in os.environ)
    if waits:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, engine.ready)
    else:
        engine.ready()
    async with server:
        await server.serve_forever()


def read(path: Path) -> EngineConfig:
    return msgspec.json.decode(path.read_bytes(), type=EngineConfig, dec_hook=lambda kind, value: kind(value))


if __name__ == "__main__":
    settings = read(Path(sys.argv[2]))
    if settings.artifact.name.startswith("exit-"):
        sys.exit(int(settings.artifact.name.removeprefix("exit-")))
    asyncio.run(main(settings, waits="--wait" in sys.argv))
