"""`POST /v1/chat/completions` (spec/serving.md §7)."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from engine.api.body import parse_body, read_body
from engine.api.errors import ApiError, internal, queue_timeout
from engine.api.generation import Account, Ask, Event, Prefilled, Prepared, Silence, TextDelta, generate, prepare
from engine.api.metrics import Outcome
from engine.api.schemas import ChatRequest, messages_for_template
from engine.api.service import SERVICE, Service
from engine.api.sse import EventStream
from engine.log import get_logger
from engine.protocol import Finish

log = get_logger(__name__)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer one chat request, whole or as a stream."""
    service = request.app[SERVICE]
    account = Account(arrived=time.monotonic(), on_first_token=service.metrics.first_token)
    chat = await parse_body(ChatRequest, await read_body(request, service), service)
    model, limits = service.serving
    name = service.public_id(model)
    if chat.model != name:
        raise ApiError(
            404, f"the model {chat.model[:100]!r} is not here; this server has {name!r}",
            code="model_not_found", param="model",
        )  # fmt: skip
    with service.admission.slot(limits):
        outcome: Outcome = "failed"
        try:
            try:
                prepared = await _prepare(service, chat, account)
            except ApiError:
                outcome = "rejected"
                raise
            answer = Answer(service, chat, prepared, account, name)
            if chat.stream:
                response, outcome = await answer.stream(request)
            else:
                response, outcome = web.json_response(await answer.whole()), "completed"
            return response
        except (asyncio.CancelledError, ConnectionResetError):
            outcome = "cancelled"
            raise
        finally:
            _close(service, account, outcome)


async def _prepare(service: Service, chat: ChatRequest, account: Account) -> Prepared:
    model, limits = service.serving
    defaults = service.config.generation
    timeout = service.config.pending_timeout_ms
    try:
        async with asyncio.timeout_at(
            asyncio.get_running_loop().time() + account.arrived + timeout / 1000 - time.monotonic()
        ):
            return await service.offload(lambda: prepare(ask_of(chat), model, limits, defaults))
    except TimeoutError as error:
        raise queue_timeout(timeout) from error


def ask_of(chat: ChatRequest) -> Ask:
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
    )


def _close(service: Service, account: Account, outcome: Outcome) -> None:
    duration = time.monotonic() - account.arrived
    service.metrics.ended(outcome, account, duration)
    log.info(
        "request_done",
        outcome=outcome,
        finish=account.finish,
        prompt_tokens=account.prompt_tokens,
        completion_tokens=account.generated,
        seconds=round(duration, 3),
    )


def finish_reason(finish: Finish | None) -> str:
    """OpenAI's word for how the answer ended."""
    return "length" if finish in ("length", "context") else "stop"


@dataclass
class Answer:
    """One answer in Chat's terms."""

    service: Service
    chat: ChatRequest
    prepared: Prepared
    account: Account
    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(8)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def _events(self) -> AsyncGenerator[Event, None]:
        config = self.service.config
        return generate(
            self.service.link,
            self.prepared,
            self.account,
            pending_timeout_ms=config.pending_timeout_ms,
            silence=config.keep_alive,
        )

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    async def whole(self) -> dict[str, Any]:
        """The complete answer (§7.2)."""
        reasoning: list[str] = []
        content: list[str] = []
        async with aclosing(self._events()) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    (reasoning if event.reasoning else content).append(event.text)
        message: dict[str, Any] = {"role": "assistant", "content": "".join(content), "refusal": None}
        if reasoning:
            message["reasoning_content"] = "".join(reasoning)
        return self._head("chat.completion") | {
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": finish_reason(self.account.finish),
                }
            ],
            "usage": self.account.usage(),
            "timings": self.account.timings(),
        }

    async def stream(self, request: web.Request) -> tuple[web.StreamResponse, Outcome]:
        """The answer as events (§7.3). An error after the headers is one event, and then the stream ends."""
        stream = EventStream(request)
        await stream.start()
        try:
            await self._write(stream)
        except ApiError as error:
            await stream.send(error.openai())
            return stream.response, "failed"
        except (ConnectionResetError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("stream_failed")
            await stream.send(internal().openai())
            return stream.response, "failed"
        return stream.response, "completed"

    async def _write(self, stream: EventStream) -> None:
        await stream.send(self._chunk({"role": "assistant", "content": ""}))
        async with aclosing(self._events()) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    chunk = self._chunk({"reasoning_content" if event.reasoning else "content": event.text})
                    if self.chat.timings_per_token:
                        chunk["timings"] = self.account.timings()
                    await stream.send(chunk)
                elif isinstance(event, Prefilled):
                    if self.chat.return_progress:
                        await stream.send(self._chunk({}) | {"prompt_progress": self.account.progress()})
                elif isinstance(event, Silence):
                    await stream.keep_alive()
        last = self._chunk({}, finish_reason(self.account.finish))
        if not self._with_usage:
            last["timings"] = self.account.timings()
        await stream.send(last)
        if self._with_usage:
            totals = {"choices": [], "usage": self.account.usage(), "timings": self.account.timings()}
            await stream.send(self._head("chat.completion.chunk") | totals)
        await stream.done()

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = self._head("chat.completion.chunk") | {"choices": [choice]}
        return chunk | {"usage": None} if self._with_usage else chunk

    @property
    def _with_usage(self) -> bool:
        options = self.chat.stream_options
        return options is not None and bool(options.include_usage)
