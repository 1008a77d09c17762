"""`/openapi.json`: the service in OpenAPI 3.1, made from the models that validate the requests."""

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

from engine.api.messages_request import MessagesRequest, PromptRequest
from engine.api.responses.schemas import CreateRequest, InputTokensRequest
from engine.api.schemas import ChatRequest
from engine.version import version


class Answer(BaseModel):
    """Part of an answer: more members may come."""

    model_config = ConfigDict(extra="allow")


class OpenAIErrorObject(Answer):
    """What went wrong, for whom, and where."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(Answer):
    """An error outside `/v1/messages`."""

    error: OpenAIErrorObject


class AnthropicErrorObject(Answer):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(Answer):
    """An error under `/v1/messages`."""

    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str


class Health(Answer):
    """Whether requests are served; `phase`, `detail` and `progress` while they are not.

    `findings` of the doctor that are not well: for callers with a key, or on the machine itself.
    """

    status: Literal["ok", "unavailable"]
    version: str


class Model(Answer):
    """A model. The three context members are the same number."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    context_window: int
    context_length: int
    architecture: dict[str, list[str]]


class ModelList(Answer):
    """The models, which is one."""

    object: Literal["list"]
    data: list[Model]


class Properties(Answer):
    """llama.cpp's description of a server."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    modalities: dict[str, bool]
    build_info: str


class Load(Answer):
    """How busy the server is."""

    object: Literal["ninfer.load"]
    model: str
    uptime_seconds: float
    capacity: dict[str, int]
    requests: dict[str, int]
    occupancy: dict[str, int]
    counters: dict[str, int]
    host: dict[str, float]
    last_request: dict[str, float] | None


class ChatCompletion(Answer):
    """A chat answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any]
    timings: dict[str, float]


class AnthropicMessage(Answer):
    """An answer of Anthropic Messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, Any]


class TokenCount(Answer):
    """Tokens of a prompt."""

    input_tokens: int


class Response(Answer):
    """A response object."""

    id: str
    object: Literal["response"]
    status: str
    model: str
    output: list[dict[str, Any]]


class InputTokens(TokenCount):
    """Tokens of a prompt."""

    object: Literal["response.input_tokens"]


class InputItems(Answer):
    """A page of input items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(Answer):
    """What was deleted."""

    id: str
    object: Literal["response.deleted"]
    deleted: Literal[True]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One route. `answer` None is an answer without JSON; `stream` says that events can come instead."""

    method: str
    path: str
    summary: str
    request: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    media: str = "application/json"
    stream: bool = False
    key: bool = True
    query: dict[str, dict[str, Any]] = field(default_factory=dict)


_INCLUDE: dict[str, dict[str, Any]] = {"include": {"type": "array", "items": {"type": "string"}}}
_PAGE: dict[str, dict[str, Any]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string"},
}
_RESPONSE = "/v1/responses/{id}"

OPERATIONS = (
    Operation(method="head", path="/", summary="Whether somebody is there", media="", key=False),
    Operation(method="get", path="/", summary="The status page", media="text/html", key=False),
    Operation(method="get", path="/health", summary="Whether requests are served", answer=Health, key=False),
    Operation(method="get", path="/metrics", summary="Prometheus metrics", media="text/plain"),
    Operation(method="get", path="/openapi.json", summary="This description", media="application/json"),
    Operation(method="get", path="/props", summary="Properties as of llama.cpp", answer=Properties),
    Operation(method="get", path="/v1/load", summary="Load", answer=Load),
    Operation(method="get", path="/v1/models", summary="Models", answer=ModelList),
    Operation(method="get", path="/v1/models/{id}", summary="One model", answer=Model),
    Operation(
        method="post", path="/v1/chat/completions", summary="OpenAI Chat Completions",
        request=ChatRequest, answer=ChatCompletion, stream=True,
    ),
    Operation(
        method="post", path="/v1/messages", summary="Anthropic Messages",
        request=MessagesRequest, answer=AnthropicMessage, stream=True, query={"beta": {"type": "boolean"}},
    ),
    Operation(
        method="post", path="/v1/messages/count_tokens", summary="Tokens of a Messages prompt",
        request=PromptRequest, answer=TokenCount, query={"beta": {"type": "boolean"}},
    ),
    Operation(
        method="post", path="/v1/responses", summary="OpenAI Responses",
        request=CreateRequest, answer=Response, stream=True,
    ),
    Operation(
        method="post", path="/v1/responses/input_tokens", summary="Tokens of a Responses prompt",
        request=InputTokensRequest, answer=InputTokens,
    ),
    Operation(
        method="post", path="/v1/responses/compact", summary="Always refused: this server compacts nothing",
        request=None, answer=None,
    ),
    Operation(method="get", path=_RESPONSE, summary="A stored response", answer=Response, query=_INCLUDE),
    Operation(method="delete", path=_RESPONSE, summary="Delete a stored response", answer=Deleted),
    Operation(
        method="get", path=f"{_RESPONSE}/input_items", summary="Input items of a stored response",
        answer=InputItems, query=_PAGE | _INCLUDE,
    ),
    Operation(
        method="post", path=f"{_RESPONSE}/cancel", summary="Always refused: no response is made in the background",
    ),
)  # fmt: skip


@functools.cache
def document() -> dict[str, Any]:
    """The description. Names of models that two protocols share are told apart by pydantic."""
    models: dict[type[BaseModel], None] = {OpenAIError: None, AnthropicError: None}
    for operation in OPERATIONS:
        models |= dict.fromkeys(one for one in (operation.request, operation.answer) if one is not None)
    keys, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    references: dict[Any, Any] = {model: schema for (model, _), schema in keys.items()}
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "NInfer",
            "version": version(),
            "description": "OpenAI Chat Completions, OpenAI Responses and Anthropic Messages from one box.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"header": []}],
    }


def _operation(operation: Operation, references: dict[Any, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method} {operation.path}",
        "responses": _responses(operation, references),
    }
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()
    ]  # fmt: skip
    if "{id}" in operation.path:
        parameters.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}})
    if parameters:
        made["parameters"] = parameters
    if not operation.key:
        made["security"] = [{}]
    if operation.request is not None:
        content = {"application/json": {"schema": references[operation.request]}}
        made["requestBody"] = {"required": True, "content": content}
    return made


def _responses(operation: Operation, references: dict[Any, Any]) -> dict[str, Any]:
    error = AnthropicError if operation.path.startswith("/v1/messages") else OpenAIError
    content: dict[str, Any] = {}
    if operation.media:
        schema = {} if operation.media == "text/plain" else {"type": "object"}
        content[operation.media] = {"schema": schema if operation.answer is None else references[operation.answer]}
    if operation.stream:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    refused = operation.summary.startswith("Always refused")
    found: dict[str, Any] = {} if refused else {"200": {"description": operation.summary, "content": content}}
    if operation.key or refused:
        found["default"] = {
            "description": "An error",
            "content": {"application/json": {"schema": references[error]}},
        }
    else:
        found["503"] = {"description": "Not ready", "content": {"application/json": {"schema": {"type": "object"}}}}
    return found


async def openapi(_: web.Request) -> web.Response:
    """The description as JSON."""
    return web.json_response(document())
