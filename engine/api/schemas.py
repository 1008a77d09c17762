"""The Chat Completions request as pydantic models (spec/serving.md §7.1).

A field whose neutral value is sent is accepted; a field that asks for what this version lacks is refused with its own
code and never ignored. Unknown top-level fields are ignored. Bodies are parsed straight from JSON bytes, which keeps
the order of members.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictStr,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

LARGEST_COUNT = 2**31 - 1
LARGEST_BUDGET = 2**32 - 1
LONGEST_STOP = 1024

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _real(minimum: float, maximum: float) -> Any:
    return Field(strict=True, ge=minimum, le=maximum, allow_inf_nan=False)


def _whole(minimum: int, maximum: int) -> Any:
    return Field(strict=True, ge=minimum, le=maximum)


def refuse(code: str, message: str) -> PydanticCustomError:
    """The error of a field that asks for what this version lacks."""
    return PydanticCustomError(code, "{text}", {"text": message})


def _only(neutral: Callable[[Any], bool], code: str, message: str) -> AfterValidator:
    """Accept neutral values; refuse the rest with `code`."""

    def check(value: Any) -> Any:
        if value is None or neutral(value):
            return value
        raise refuse(code, message)

    return AfterValidator(check)


def _is(*accepted: Any) -> Callable[[Any], bool]:
    return lambda value: value in accepted


def _empty(value: Any) -> bool:
    return not value


def _no_value(value: Any) -> bool:
    return isinstance(value, dict) and all(item is None for item in value.values())


def _all_zero(value: Any) -> bool:
    return all(isinstance(item, int | float) and item == 0 for item in value.values())


_NO_CONSTRAINTS = "this version writes free text only; leave the field out and ask for the form in the prompt"
_NO_TOOLS = "this version calls no tools; send no tools and describe them in the prompt"
_NO_LOGPROBS = "log-probabilities are not returned; leave the field out"


class Part(BaseModel):
    """One part of a message's content; only text reaches the model."""

    model_config = ConfigDict(extra="ignore")

    type: StrictStr
    text: StrictStr | None = None
    refusal: StrictStr | None = None

    @model_validator(mode="after")
    def _check(self) -> "Part":
        if self.type == "text":
            if self.text is None:
                raise refuse("invalid_value", "a text part needs the member text")
        elif self.type == "refusal":
            if self.refusal is None:
                raise refuse("invalid_value", "a refusal part needs the member refusal")
        elif self.type in ("image_url", "video_url"):
            raise refuse("vision_disabled", f"this server reads text only; remove the {self.type} part")
        elif self.type == "file":
            raise refuse("file_inputs_not_supported", "files are not read; paste their text into a text part")
        elif self.type == "input_audio":
            raise refuse("audio_inputs_not_supported", "audio is not read; send text parts")
        else:
            raise refuse("modality_not_supported", f"unknown part type {self.type[:40]!r}; known: text, refusal")
        return self

    @property
    def value(self) -> str:
        """The text that reaches the model."""
        return (self.text if self.type == "text" else self.refusal) or ""


Content = Annotated[
    Annotated[StrictStr, Tag("text")] | Annotated[list[Part], Tag("parts")],
    Discriminator(lambda value: "parts" if isinstance(value, list) else "text"),
]


class CalledFunction(BaseModel):
    """Name and JSON-object arguments of a historic call."""

    name: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    arguments: StrictStr = ""

    @field_validator("arguments")
    @classmethod
    def _object(cls, text: str) -> str:
        try:
            if text.strip() and not isinstance(json.loads(text), dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            raise refuse("invalid_tool_history", "arguments must be the text of a JSON object") from error
        return text


class CustomCall(BaseModel):
    """A historic call of a free-text tool."""

    name: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    input: StrictStr


class ToolCall(BaseModel):
    """A call in an assistant turn of the history."""

    id: Annotated[StrictStr, Field(min_length=1)]
    type: StrictStr = "function"
    function: CalledFunction | None = None
    custom: CustomCall | None = None

    @model_validator(mode="after")
    def _check(self) -> "ToolCall":
        if self.type not in ("function", "custom"):
            raise refuse("tool_type_not_supported", f"call type {self.type[:40]!r}; known: function, custom")
        if (self.function if self.type == "function" else self.custom) is None:
            raise refuse("invalid_tool_history", f"a {self.type} call needs the member {self.type}")
        return self


ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class ChatMessage(BaseModel):
    """One turn of the conversation."""

    model_config = ConfigDict(extra="ignore")

    role: StrictStr
    content: Content | None = None
    name: StrictStr | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: StrictStr | None = None
    reasoning_content: StrictStr | None = None
    reasoning: StrictStr | None = None
    refusal: StrictStr | None = None
    audio: Any = None

    @field_validator("role")
    @classmethod
    def _role(cls, role: str) -> str:
        if role not in ROLES:
            raise refuse("unsupported_role", f"unknown role {role[:40]!r}; known: {', '.join(ROLES)}")
        return role

    @model_validator(mode="after")
    def _check(self) -> "ChatMessage":
        if self.role == "assistant":
            if self.audio is not None:
                raise refuse("assistant_history_not_supported", "audio in an assistant message is not supported")
            both = self.reasoning_content is not None and self.reasoning is not None
            if both and self.reasoning_content != self.reasoning:
                raise refuse("invalid_assistant_history", "reasoning_content and reasoning differ; send one of them")
            return self
        if self.content is None:
            raise refuse("invalid_value", f"a {self.role} message needs content")
        if self.tool_calls:
            raise refuse("invalid_tool_history", f"tool_calls belong to assistant messages, not to {self.role}")
        if isinstance(self.content, list) and any(part.type == "refusal" for part in self.content):
            raise refuse("modality_not_supported", f"a refusal part belongs to assistant messages, not to {self.role}")
        if self.role == "tool":
            if not self.tool_call_id:
                raise refuse("invalid_tool_history", "a tool message needs tool_call_id")
        elif self.role == "function":
            if not self.name:
                raise refuse("invalid_tool_history", "a function message needs name")
        elif self.name:
            raise refuse("message_name_not_supported", "names do not reach the model; put the name into the content")
        return self


class StreamOptions(BaseModel):
    """How a stream reports."""

    include_usage: StrictBool | None = None
    include_obfuscation: StrictBool | None = None


class ResponseFormat(BaseModel):
    """Only plain text is written."""

    type: Annotated[StrictStr, _only(_is("text"), "constrained_decoding_not_supported", _NO_CONSTRAINTS)]


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


# Tools that other servers run themselves are dropped, as the clients that send them expect (spec/serving.md §6.5).
_HOSTED = ("web_search", "code_interpreter", "file_search", "image_generation", "computer_use", "mcp")


def _only_hosted(tools: Any) -> bool:
    return all(isinstance(tool, dict) and str(tool.get("type")).startswith(_HOSTED) for tool in tools)


_Refused = Annotated[Any, _only(lambda _: False, "constrained_decoding_not_supported", _NO_CONSTRAINTS)]


class ChatRequest(BaseModel):
    """`POST /v1/chat/completions`."""

    model_config = ConfigDict(extra="ignore")

    model: StrictStr
    messages: Annotated[list[ChatMessage], Field(min_length=1)]

    # Length and sampling
    max_completion_tokens: Annotated[int, _whole(0, LARGEST_COUNT)] | None = None
    max_tokens: Annotated[int, _whole(0, LARGEST_COUNT)] | None = None
    temperature: Annotated[float, _real(0, 2)] | None = None
    top_p: Annotated[float, _real(0, 1)] | None = None
    min_p: Annotated[float, _real(0, 1)] | None = None
    top_k: Annotated[int, _whole(0, 20)] | None = None
    presence_penalty: Annotated[float, _real(-2, 2)] | None = None
    frequency_penalty: Annotated[float, _real(-2, 2)] | None = None
    seed: Annotated[int, _whole(-(2**63), 2**63 - 1)] | None = None
    repetition_penalty: Annotated[
        Annotated[float, _real(0, 1e6)] | None,
        _only(_is(1), "repetition_penalty_not_supported", "only 1; use presence_penalty or frequency_penalty"),
    ] = None
    stop: Annotated[
        list[Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_STOP)]] | None,
        Field(max_length=4),
        BeforeValidator(_stops),
    ] = None
    ignore_eos: StrictBool | None = None

    # Stream
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    timings_per_token: StrictBool | None = None
    return_progress: StrictBool | None = None

    # Thinking and template
    reasoning_effort: Effort | None = None
    enable_thinking: StrictBool | None = None
    preserve_thinking: StrictBool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking_budget: Annotated[int, _whole(1, LARGEST_BUDGET)] | None = None

    # What this version lacks
    n: Annotated[
        Annotated[int, _whole(1, LARGEST_COUNT)] | None,
        _only(_is(1), "n_not_supported", "one answer a request; send n requests"),
    ] = None
    logit_bias: Annotated[
        dict[str, Any] | None, _only(_all_zero, "logit_bias_not_supported", "only zeros; leave the field out")
    ] = None
    logprobs: Annotated[StrictBool | None, _only(_is(False), "logprobs_not_supported", _NO_LOGPROBS)] = None
    top_logprobs: Annotated[
        Annotated[int, _whole(0, 20)] | None, _only(_is(0), "logprobs_not_supported", _NO_LOGPROBS)
    ] = None  # fmt: skip
    tools: Annotated[list[Any] | None, _only(_only_hosted, "tools_not_supported", _NO_TOOLS)] = None
    tool_choice: Annotated[Any, _only(_is("none", "auto"), "tool_choice_not_supported", _NO_TOOLS)] = None
    parallel_tool_calls: StrictBool | None = None
    tool_constraints: Literal["basic", "auto"] | None = None
    functions: Annotated[list[Any] | None, _only(_empty, "legacy_tools_not_supported", _NO_TOOLS)] = None
    function_call: Annotated[Any, _only(_is("none", "auto"), "legacy_tools_not_supported", _NO_TOOLS)] = None
    response_format: ResponseFormat | None = None
    structured_outputs: _Refused = None
    grammar: _Refused = None
    json_schema: _Refused = None
    guided_json: _Refused = None
    guided_regex: _Refused = None
    guided_choice: _Refused = None
    guided_grammar: _Refused = None
    modalities: Annotated[
        list[StrictStr] | None,
        _only(lambda value: value == ["text"], "modality_not_supported", "only [\"text\"]"),
    ] = None  # fmt: skip
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None,
        _only(_is("medium"), "verbosity_not_supported", "only medium; ask for the length in the prompt"),
    ] = None
    store: Annotated[StrictBool | None, _only(_is(False), "store_not_supported", "chat answers are not stored")] = None
    web_search_options: Annotated[
        Any, _only(lambda _: False, "web_search_not_supported", "this server does not search the web")
    ] = None
    moderation: Annotated[
        Any, _only(lambda _: False, "moderation_not_supported", "this server does not moderate")
    ] = None  # fmt: skip
    mm_processor_kwargs: Annotated[
        dict[str, Any] | None,
        _only(_no_value, "mm_processor_kwargs_not_supported", "this server reads text only; leave the field out"),
    ] = None
    graft: Annotated[
        StrictStr | None, _only(_is(""), "unknown_graft", "this server has no grafts; leave the field out")
    ] = None  # fmt: skip
    safety_identifier: Annotated[StrictStr, Field(max_length=64)] | None = None
    prompt_cache_key: Annotated[StrictStr, Field(max_length=64)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return tuple(self.stop or ())

    @property
    def output_limit(self) -> int | None:
        """The longest answer that the request states."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def messages_for_template(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """The conversation as the template reads it: parts, decoded call arguments, one name for reasoning."""
    return [_for_template(message) for message in messages]


def _for_template(message: ChatMessage) -> dict[str, Any]:
    content: str | list[dict[str, str]]
    if isinstance(message.content, list):
        content = [{"type": "text", "text": part.value} for part in message.content]
    else:
        content = message.content if message.content is not None else (message.refusal or "")
    made: dict[str, Any] = {"role": "tool" if message.role == "function" else message.role, "content": content}
    if message.role in ("tool", "function"):
        made["tool_call_id"] = message.tool_call_id or message.name
    if message.role == "assistant":
        thought = message.reasoning_content if message.reasoning_content is not None else message.reasoning
        if thought is not None:
            made["reasoning_content"] = thought
        calls = [_call(call) for call in message.tool_calls or ()]
        if message.function_call is not None:
            name = message.function_call.name
            calls.append({"id": name, "type": "function", "function": _function(message.function_call)})
        if calls:
            made["tool_calls"] = calls
    return made


def _call(call: ToolCall) -> dict[str, Any]:
    if call.function is not None:
        return {"id": call.id, "type": "function", "function": _function(call.function)}
    assert call.custom is not None  # checked by the model
    # A free-text tool is shown to the model as a function with one string (spec/serving.md §6.5).
    function = {"name": call.custom.name, "arguments": {"input": call.custom.input}}
    return {"id": call.id, "type": "function", "function": function}


def _function(function: CalledFunction) -> dict[str, Any]:
    return {"name": function.name, "arguments": function.arguments}
