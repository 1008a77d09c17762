"""`POST /v1/messages` and `/v1/messages/count_tokens` (spec/serving.md §9)."""

import json
import secrets
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from engine.api.body import parse_body, read_body
from engine.api.exchange import Exchange, exchange, in_time
from engine.api.generation import Account, Event, Prepared, Silence, TextDelta, render
from engine.api.messages_prompt import ask_of, count_ask_of
from engine.api.messages_request import MessagesRequest, PromptRequest
from engine.api.service import SERVICE
from engine.api.sse import EventStream
from engine.text.tool_events import CallArguments, CallEnd, CallStart


async def messages(request: web.Request) -> web.StreamResponse:
    """Answer one request, whole or as a stream."""
    service, arrived = request.app[SERVICE], time.monotonic()
    asked = await parse_body(MessagesRequest, await read_body(request, service), service)
    id = f"msg_{secrets.token_hex(8)}"
    async with exchange(
        request, "anthropic_messages", id=id, model=asked.model, stream=bool(asked.stream), arrived=arrived
    ) as running:
        answer = Answer(running, await running.prepare(lambda: ask_of(asked)))
        return await answer.stream(request) if asked.stream else web.json_response(await answer.whole())


async def count_tokens(request: web.Request) -> web.Response:
    """How long the prompt would be, even if it is too long."""
    service, arrived = request.app[SERVICE], time.monotonic()
    asked = await parse_body(PromptRequest, await read_body(request, service), service)
    model, _ = service.serving
    prompt = await in_time(
        service, arrived, lambda: render(count_ask_of(asked), model, service.config.generation)
    )  # fmt: skip
    return web.json_response({"input_tokens": len(prompt.token_ids)})


class Blocks:
    """Turns the events of an answer into stream events, and gathers the blocks that they describe."""

    def __init__(self, signature: str) -> None:
        """`signature` goes with the thought. It is opaque, and nobody checks it when it comes back."""
        self._signature = signature
        self._open: dict[str, Any] | None = None
        self._index = 0
        self._arguments = ""
        self.done: list[dict[str, Any]] = []
        self.calls = 0

    def take(self, event: Event) -> list[dict[str, Any]]:
        """The stream events of one event."""
        if isinstance(event, TextDelta):
            kind = "thinking" if event.reasoning else "text"
            events = self._start({"type": "thinking", "thinking": "", "signature": ""} if event.reasoning else
                                 {"type": "text", "text": ""}) if self._kind != kind else []  # fmt: skip
            assert self._open is not None  # just started
            self._open[kind] += event.text
            return [*events, self._delta({"type": f"{kind}_delta", kind: event.text})]
        if isinstance(event, CallStart):
            block = {"type": "tool_use", "id": f"toolu_{secrets.token_hex(8)}", "name": event.name, "input": {}}
            return self._start(block)
        if isinstance(event, CallArguments):
            self._arguments += event.text
            return [self._delta({"type": "input_json_delta", "partial_json": event.text})]
        if isinstance(event, CallEnd):
            return self._stop(complete=True)
        return []

    def finish(self) -> list[dict[str, Any]]:
        """The end of the last block. A call that was cut is closed in the stream, and is none."""
        return self._stop(complete=self._kind != "tool_use")

    @property
    def _kind(self) -> str:
        return "" if self._open is None else str(self._open["type"])

    def _start(self, block: dict[str, Any]) -> list[dict[str, Any]]:
        events = self._stop(complete=True)
        self._open, self._arguments = block, ""
        return [*events, {"type": "content_block_start", "index": self._index, "content_block": dict(block)}]

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self, *, complete: bool) -> list[dict[str, Any]]:
        block, self._open = self._open, None
        if block is None:
            return []
        events = []
        if block["type"] == "thinking":
            block["signature"] = self._signature
            events.append(self._delta({"type": "signature_delta", "signature": self._signature}))
        elif block["type"] == "tool_use" and complete:
            block["input"] = json.loads(self._arguments or "{}")
            self.calls += 1
        if complete:
            self.done.append(block)
        events.append({"type": "content_block_stop", "index": self._index})
        self._index += 1
        return events


@dataclass
class Answer:
    """One answer in Anthropic's terms."""

    running: Exchange
    prepared: Prepared
    blocks: Blocks = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = Blocks(self.running.id)

    async def whole(self) -> dict[str, Any]:
        """The complete message."""
        async with aclosing(self.running.events()) as events:
            async for event in events:
                self.blocks.take(event)
        self.blocks.finish()
        return self._message(self.blocks.done) | self._end()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """The message as events. An error after the headers is one event, and then the stream ends."""
        stream = EventStream(request)
        await stream.start()
        try:
            async for event in self._events(stream):
                await stream.send(event, event["type"])
        except ConnectionResetError:
            raise
        except Exception as error:
            shown = self.running.failed(error)
            await stream.send(shown.anthropic(self.running.http_id), "error")
        return stream.response

    async def _events(self, stream: EventStream) -> Any:
        begun = False
        async with aclosing(self.running.events()) as events:
            async for event in events:
                if isinstance(event, Silence):
                    await stream.keep_alive()
                    continue
                if not begun:  # on a lane, so the cached part of the prompt is known
                    yield self._start()
                    begun = True
                for made in self.blocks.take(event):
                    yield made
        if not begun:
            yield self._start()
        for made in self.blocks.finish():
            yield made
        end = self._end()
        yield {"type": "message_delta", "delta": {name: end.pop(name) for name in _STOPS}} | end
        yield {"type": "message_stop"}

    def _start(self) -> dict[str, Any]:
        return {
            "type": "message_start",
            "message": self._message([]) | dict.fromkeys(_STOPS) | {"usage": usage(self.running.account, output=0)},
        }

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.running.id,
            "type": "message",
            "role": "assistant",
            "model": self.running.model,
            "content": content,
        }

    def _end(self) -> dict[str, Any]:
        account = self.running.account
        reason = stop_reason(account, self.prepared, self.blocks.calls)
        return {
            "stop_reason": reason,
            "stop_sequence": account.stop if reason == "stop_sequence" else None,
            "usage": usage(account, output=account.generated),
            **({} if account.constraint is None else {"constraint": account.constraint}),
        }


_STOPS = ("stop_reason", "stop_sequence")


def stop_reason(account: Account, prepared: Prepared, calls: int) -> str:
    """Why the message ends; limits win over calls."""
    if account.finish == "context" or (account.finish == "length" and prepared.context_bound):
        return "model_context_window_exceeded"
    if account.finish == "length":
        return "max_tokens"
    if calls:
        return "tool_use"
    return "stop_sequence" if account.finish == "stop_string" else "end_turn"


def usage(account: Account, *, output: int) -> dict[str, Any]:
    """Anthropic's usage object; its `input_tokens` are those that were not cached."""
    return {
        "input_tokens": account.prompt_tokens - account.cached_tokens,
        "cache_creation_input_tokens": None,
        "cache_read_input_tokens": account.cached_tokens,
        "cache_creation": None,
        "output_tokens": output,
        "output_tokens_details": {"thinking_tokens": account.reasoning_tokens},
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
        "service_tier": None,
        "inference_geo": None,
    }
