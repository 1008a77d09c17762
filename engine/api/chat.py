"""`POST /v1/chat/completions` (spec/serving.md §7)."""

import secrets
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from engine.api.body import parse_body, read_body
from engine.api.errors import ApiError
from engine.api.exchange import Exchange, exchange
from engine.api.generation import Account, Ask, MadeCall, Prefilled, Silence, TextDelta, gather
from engine.api.schemas import ChatRequest, messages_for_template
from engine.api.service import SERVICE
from engine.api.sse import EventStream
from engine.api.tools import NO_TOOLS, Toolset, new_call_id
from engine.protocol import Finish
from engine.text.tool_events import CallArguments, CallEnd, CallStart
from engine.text.tools import Kind


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer one chat request, whole or as a stream."""
    service, arrived = request.app[SERVICE], time.monotonic()
    chat = await parse_body(ChatRequest, await read_body(request, service), service)
    model, _ = service.serving
    name = service.public_id(model)
    if chat.model != name:
        raise ApiError(
            404, f"the model {chat.model[:100]!r} is not here; this server has {name!r}",
            code="model_not_found", param="model",
        )  # fmt: skip
    tools = chat.toolset
    id = f"chatcmpl-{secrets.token_hex(8)}"
    async with exchange(
        request, "openai_chat_completions", id=id, model=name, stream=bool(chat.stream), arrived=arrived
    ) as running:
        await running.prepare(lambda: ask_of(chat, tools))
        answer = Answer(chat, running)
        return await answer.stream(request) if chat.stream else web.json_response(await answer.whole())


def ask_of(chat: ChatRequest, tools: Toolset = NO_TOOLS) -> Ask:
    """The request in no protocol's terms."""
    return Ask(
        messages=messages_for_template(chat.messages),
        sampling=chat,
        output_limit=chat.output_limit,
        stops=chat.stops,
        ignore_eos=chat.ignore_eos or False,
        enable_thinking=chat.enable_thinking,
        reasoning_effort=chat.reasoning_effort,
        preserve_thinking=chat.preserve_thinking,
        template_kwargs=chat.chat_template_kwargs or {},
        thinking_budget=chat.thinking_budget,
        tools=tools,
        tool_constraints=chat.tool_constraints,
        form=chat.form,
    )


def finish_reason(finish: Finish | None, *, calls: bool) -> str:
    """OpenAI's word for how the answer ended."""
    if finish in ("length", "context"):
        return "length"
    return "tool_calls" if calls else "stop"


@dataclass
class Answer:
    """One answer in Chat's terms."""

    chat: ChatRequest
    running: Exchange
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def account(self) -> Account:
        """What the request has used."""
        return self.running.account

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.running.id, "object": kind, "created": self.created, "model": self.running.model}

    def _observed(self) -> dict[str, Any]:
        return {} if self.account.constraint is None else {"constraint": self.account.constraint}

    async def whole(self) -> dict[str, Any]:
        """The complete answer (§7.2)."""
        async with aclosing(self.running.events()) as events:
            answer = await gather(events)
        calls = [_whole_call(call) for call in answer.calls if call.complete]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not answer.content else answer.content,
            "refusal": None,
        }
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if calls:
            message["tool_calls"] = calls
        finish = finish_reason(self.account.finish, calls=bool(calls))
        return self._head("chat.completion") | {
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
            "usage": self.account.usage(),
            "timings": self.account.timings(),
            **self._observed(),
        }

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """The answer as events (§7.3). An error after the headers is one event, and then the stream ends."""
        stream = EventStream(request)
        await stream.start()
        try:
            await self._write(stream)
        except ConnectionResetError:
            raise
        except Exception as error:
            await stream.send(self.running.failed(error).openai())
        return stream.response

    async def _write(self, stream: EventStream) -> None:
        await stream.send(self._chunk({"role": "assistant", "content": ""}))
        kinds: list[Kind] = []
        async with aclosing(self.running.events()) as events:
            async for event in events:
                if isinstance(event, Prefilled):
                    if self.chat.return_progress:
                        await stream.send(self._chunk({}) | {"prompt_progress": self.account.progress()})
                elif isinstance(event, Silence):
                    await stream.keep_alive()
                elif not isinstance(event, CallEnd):
                    chunk = self._chunk(_delta(event, kinds))
                    if self.chat.timings_per_token:
                        chunk["timings"] = self.account.timings()
                    await stream.send(chunk)
        last = self._chunk({}, finish_reason(self.account.finish, calls=bool(kinds)))
        if not self._with_usage:
            last |= {"timings": self.account.timings(), **self._observed()}
        await stream.send(last)
        if self._with_usage:
            totals = {"choices": [], "usage": self.account.usage(), "timings": self.account.timings()}
            await stream.send(self._head("chat.completion.chunk") | totals | self._observed())
        await stream.done()

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = self._head("chat.completion.chunk") | {"choices": [choice]}
        return chunk | {"usage": None} if self._with_usage else chunk

    @property
    def _with_usage(self) -> bool:
        options = self.chat.stream_options
        return options is not None and bool(options.include_usage)


def _whole_call(call: MadeCall) -> dict[str, Any]:
    return {"id": new_call_id(), "type": call.kind, call.kind: _called(call.kind, call.arguments, call.name)}


def _called(kind: Kind, text: str, name: str | None = None) -> dict[str, Any]:
    return ({} if name is None else {"name": name}) | {"input" if kind == "custom" else "arguments": text}


def _delta(event: TextDelta | CallStart | CallArguments, kinds: list[Kind]) -> dict[str, Any]:
    """What one event adds to the message; `kinds` are those of the calls so far."""
    if isinstance(event, TextDelta):
        return {"reasoning_content" if event.reasoning else "content": event.text}
    if isinstance(event, CallStart):
        kinds.append(event.kind)
        head = {"index": event.index, "id": new_call_id(), "type": event.kind}
        return {"tool_calls": [head | {event.kind: _called(event.kind, "", event.name)}]}
    kind = kinds[event.index]
    return {"tool_calls": [{"index": event.index, kind: _called(kind, event.text)}]}
