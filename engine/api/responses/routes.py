"""Routes of the Responses API (spec/serving.md §8)."""

import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import wraps
from typing import Any

from aiohttp import web

from engine.api.body import parse_body, read_body
from engine.api.errors import ApiError, invalid
from engine.api.exchange import Exchange, exchange, in_time
from engine.api.generation import Ask, Silence, render
from engine.api.responses.answer import Answer
from engine.api.responses.conversation import messages
from engine.api.responses.items import wire_items
from engine.api.responses.schemas import CreateRequest, InputTokensRequest, PromptRequest
from engine.api.responses.store import Entry
from engine.api.responses.tools import Declared, declare
from engine.api.sampling import AskedSampling
from engine.api.service import SERVICE, Service
from engine.api.sse import EventStream
from engine.log import get_logger

log = get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Names of the neutral layer in the words of this protocol (spec/serving.md §4.1).
_PARAMS = {"messages": "input", "reasoning_effort": "reasoning.effort"}


def _renamed(error: ApiError) -> ApiError:
    """The error in the words of this protocol."""
    if error.param is not None:
        first = error.param.partition(".")[0].partition("[")[0]
        error.param = _PARAMS.get(first, error.param)
    if error.kind == "internal_error":
        error.kind = "server_error"
    return error


def _in_our_words(handler: Handler) -> Handler:
    @wraps(handler)
    async def wrapped(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as error:
            raise _renamed(error) from error
        except (web.HTTPException, ConnectionResetError):
            raise
        except Exception as error:
            log.exception("request_failed", method=request.method, path=request.path)
            message = "the server failed on this request; its log says why"
            raise ApiError(500, message, kind="server_error") from error

    return wrapped


@dataclass(frozen=True)
class _Conversation:
    """What a request continues and adds."""

    parent: Entry | None
    items: list[dict[str, Any]]
    preserve_thinking: bool | None

    @classmethod
    def of(cls, service: Service, request: PromptRequest, owner: str | None) -> "_Conversation":
        parent = None
        if request.previous_response_id is not None:
            parent = service.responses.get(request.previous_response_id, "previous_response_id", owner=owner)
        preserve = request.preserve_thinking
        if preserve is None and parent is not None:
            preserve = parent.preserve_thinking
        return cls(parent, wire_items(request.input), preserve)

    def ask(self, request: PromptRequest, declared: Declared) -> Ask:
        """The request in no protocol's terms. Slow for large ones; runs in a worker thread."""
        created = request if isinstance(request, CreateRequest) else None
        return Ask(
            messages=messages([] if self.parent is None else self.parent.items(), self.items, request.instructions),
            sampling=AskedSampling()
            if created is None
            else AskedSampling(temperature=created.temperature, top_p=created.top_p),
            output_limit=None if created is None else created.max_output_tokens,
            reasoning_effort=request.effort,
            preserve_thinking=self.preserve_thinking,
            template_kwargs=request.chat_template_kwargs or {},
            tools=declared.toolset,
            thinking_budget=None if created is None else created.thinking_budget,
            form=None if created is None else created.form,
        )


def _check_model(service: Service, request: PromptRequest) -> None:
    name = service.public_id(service.serving[0])
    if request.model != name:
        raise ApiError(
            404, f"the model {request.model[:100]!r} is not here; this server has {name!r}",
            code="model_not_found", param="model",
        )  # fmt: skip


def _declared(request: PromptRequest) -> Declared:
    return declare(request.tools or (), request.choice, parallel=request.parallel_tool_calls is not False)


@_in_our_words
async def create(request: web.Request) -> web.StreamResponse:
    """`POST /v1/responses`: answer, whole or as a stream."""
    service, arrived = request.app[SERVICE], time.monotonic()
    body = await parse_body(CreateRequest, await read_body(request, service), service)
    _check_model(service, body)
    declared = _declared(body)
    conversation = _Conversation.of(service, body, request.get("key"))
    identity = f"resp_{secrets.token_hex(16)}"

    def keep(response: dict[str, Any]) -> None:
        if body.kept:
            entry = Entry(
                conversation.parent, conversation.items, response, preserve=conversation.preserve_thinking,
                owner=request.get("key"),
            )  # fmt: skip
            service.responses.put(identity, entry)

    async with exchange(
        request, "openai_responses", id=identity, model=body.model, stream=bool(body.stream), arrived=arrived
    ) as running:
        prepared = await running.prepare(lambda: conversation.ask(body, declared))
        answer = Answer(identity, body, declared, sampling=prepared.sampling, account=running.account, keep=keep)
        if body.stream:
            return await _stream(request, running, answer)
        async with aclosing(running.events()) as events:
            async for event in events:
                answer.take(event)
        answer.close()
        return web.json_response(answer.finished())


async def _stream(request: web.Request, running: Exchange, answer: Answer) -> web.StreamResponse:
    """The answer as events (§8.3); exactly one terminal event ends it, whatever happens."""
    stream = EventStream(request)
    await stream.start()

    async def send(changes: list[dict[str, Any]]) -> None:
        for change in changes:
            await stream.send(change, change["type"])

    try:
        await send(answer.begin())
        async with aclosing(running.events()) as events:
            async for event in events:
                if isinstance(event, Silence):
                    await stream.keep_alive()
                else:
                    await send(answer.take(event))
        await send(answer.close())
        await send([answer.end()])
    except ConnectionResetError:
        raise
    except Exception as error:
        await send([answer.fail(_renamed(running.failed(error)))])
    return stream.response


@_in_our_words
async def input_tokens(request: web.Request) -> web.StreamResponse:
    """`POST /v1/responses/input_tokens`: how long the prompt is, whether it fits or not. Takes no place."""
    service, arrived = request.app[SERVICE], time.monotonic()
    body = await parse_body(InputTokensRequest, await read_body(request, service), service)
    _check_model(service, body)
    declared, conversation = _declared(body), _Conversation.of(service, body, request.get("key"))
    model, defaults = service.serving[0], service.config.generation
    prompt = await in_time(service, arrived, lambda: render(conversation.ask(body, declared), model, defaults))
    return web.json_response({"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)})


@_in_our_words
async def retrieve(request: web.Request) -> web.StreamResponse:
    """`GET /v1/responses/{id}`: the stored object."""
    query = _Query(request)
    query.nothing("include", "include_not_supported", "nothing more can be included")
    query.nothing("starting_after", "stream_recovery_not_supported", "streams cannot be resumed")
    query.take("include_obfuscation")
    if query.take("stream") not in (None, "", "false"):
        raise invalid("a stored response is not streamed", code="retrieve_stream_not_supported", param="stream")
    query.done()
    return web.Response(body=_entry(request).response, content_type="application/json", charset="utf-8")


@_in_our_words
async def delete(request: web.Request) -> web.StreamResponse:
    """`DELETE /v1/responses/{id}`: forget the id; responses that continue it stay usable."""
    _Query(request).done()
    identity = request.match_info["id"]
    request.app[SERVICE].responses.delete(identity, owner=request.get("key"))
    return web.json_response({"id": identity, "object": "response.deleted", "deleted": True})


@_in_our_words
async def input_items(request: web.Request) -> web.StreamResponse:
    """`GET /v1/responses/{id}/input_items`: a page of the items that the request sent."""
    query = _Query(request)
    for name in query.take_all("include"):
        if name and name != "message.input_image.image_url":
            raise invalid(f"{name[:60]!r} cannot be included", code="include_not_supported", param="include")
    shown = query.take("limit") or "20"
    if not (shown.isascii() and shown.isdigit() and len(shown) <= 3 and 1 <= int(shown) <= 100):
        raise invalid("limit is a number from 1 to 100", code="invalid_pagination", param="limit")
    order = query.take("order") or "desc"
    if order not in ("asc", "desc"):
        raise invalid("order is asc or desc", code="invalid_pagination", param="order")
    after = query.take("after")
    query.done()
    items = _entry(request).input_items()
    if order == "desc":
        items.reverse()
    start = 0
    if after:
        places = [index for index, item in enumerate(items) if item["id"] == after]
        if not places:
            raise invalid(f"no input item is called {after[:80]!r}", code="invalid_pagination", param="after")
        start = places[0] + 1
    page = items[start : start + int(shown)]
    return web.json_response(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": start + len(page) < len(items),
        }
    )


@_in_our_words
async def cancel(request: web.Request) -> web.StreamResponse:
    """`POST /v1/responses/{id}/cancel`: nothing runs in the background."""
    _entry(request)
    raise invalid(
        "answers are not made in the background; close the connection to cancel", code="background_not_supported"
    )


@_in_our_words
async def compact(_: web.Request) -> web.StreamResponse:
    """`POST /v1/responses/compact`: not offered."""
    raise invalid(
        "conversations are not compacted here; send a shorter input",
        code="compaction_not_supported",
        param="context_management",
    )


def _entry(request: web.Request) -> Entry:
    return request.app[SERVICE].responses.get(request.match_info["id"], owner=request.get("key"))


class _Query:
    """The query of a request; every key must be taken."""

    def __init__(self, request: web.Request) -> None:
        self._query = request.query
        self._left = {name.removesuffix("[]") for name in self._query}

    def take_all(self, name: str) -> list[str]:
        """Every value of `name`, in either spelling of a list."""
        self._left.discard(name)
        return self._query.getall(name, []) + self._query.getall(f"{name}[]", [])

    def take(self, name: str) -> str | None:
        """The last value of `name`."""
        values = self.take_all(name)
        return values[-1] if values else None

    def nothing(self, name: str, code: str, message: str) -> None:
        """Refuse `name` unless it is empty."""
        if any(self.take_all(name)):
            raise invalid(message, code=code, param=name)

    def done(self) -> None:
        """Refuse what was not taken."""
        for name in sorted(self._left):
            raise invalid(f"unknown query parameter {name[:60]!r}", code="unknown_parameter", param=name[:60])


ROUTES = [
    web.post("/v1/responses", create),
    web.post("/v1/responses/input_tokens", input_tokens),
    web.post("/v1/responses/compact", compact),
    web.get("/v1/responses/{id}", retrieve),
    web.delete("/v1/responses/{id}", delete),
    web.get("/v1/responses/{id}/input_items", input_items),
    web.post("/v1/responses/{id}/cancel", cancel),
]
