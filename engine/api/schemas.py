"""The Chat Completions request as pydantic models (spec/serving.md §7.1).

A field whose neutral value is sent is accepted; a field that asks for what this version lacks is refused with its own
code and never ignored. Unknown top-level fields are ignored. Bodies are parsed straight from JSON bytes, which keeps
the order of members.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictStr,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from engine.api.chat_tools import DeclaredTool, declare
from engine.api.constraints import Form
from engine.api.fields import (
    LARGEST_COUNT,
    NO_LOGPROBS,
    Effort,
    never,
    one_of,
    only,
    real,
    refuse,
    whole,
)
from engine.api.forms import ResponseFormat, StructuredOutputs, only_form
from engine.api.tool_choice import SCHEMA, Choice, read_choice
from engine.api.tools import Toolset, assistant_turn, historic_call, paired, result_turn

LARGEST_BUDGET = 2**32 - 1
LONGEST_STOP = 1024
_OTHER_SPELLING = "use response_format, or structured_outputs with grammar, choice or regex"


def _empty(value: Any) -> bool:
    return not value


def _no_value(value: Any) -> bool:
    return isinstance(value, dict) and all(item is None for item in value.values())


def _all_zero(value: Any) -> bool:
    return all(isinstance(item, int | float) and item == 0 for item in value.values())


_NO_LEGACY = "functions are declared in tools and chosen with tool_choice"


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


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Refused = Annotated[Any, never("constrained_decoding_not_supported", _OTHER_SPELLING)]


class ChatRequest(BaseModel):
    """`POST /v1/chat/completions`."""

    model_config = ConfigDict(extra="ignore")

    model: StrictStr
    messages: Annotated[list[ChatMessage], Field(min_length=1)]

    # Length and sampling
    max_completion_tokens: Annotated[int, whole(0, LARGEST_COUNT)] | None = None
    max_tokens: Annotated[int, whole(0, LARGEST_COUNT)] | None = None
    temperature: Annotated[float, real(0, 2)] | None = None
    top_p: Annotated[float, real(0, 1)] | None = None
    min_p: Annotated[float, real(0, 1)] | None = None
    top_k: Annotated[int, whole(0, 20)] | None = None
    presence_penalty: Annotated[float, real(-2, 2)] | None = None
    frequency_penalty: Annotated[float, real(-2, 2)] | None = None
    seed: Annotated[int, whole(-(2**63), 2**63 - 1)] | None = None
    repetition_penalty: Annotated[
        Annotated[float, real(0, 1e6)] | None,
        only(one_of(1), "repetition_penalty_not_supported", "only 1; use presence_penalty or frequency_penalty"),
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
    thinking_budget: Annotated[int, whole(1, LARGEST_BUDGET)] | None = None

    # Tools
    tools: list[DeclaredTool] | None = None
    tool_choice: Annotated[Choice, BeforeValidator(read_choice), WithJsonSchema(SCHEMA)] = Choice()
    parallel_tool_calls: StrictBool | None = None
    tool_constraints: Literal["basic", "auto"] | None = None

    # The form of the answer
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    # What this version lacks
    n: Annotated[
        Annotated[int, whole(1, LARGEST_COUNT)] | None,
        only(one_of(1), "n_not_supported", "one answer a request; send n requests"),
    ] = None
    logit_bias: Annotated[
        dict[str, Any] | None, only(_all_zero, "logit_bias_not_supported", "only zeros; leave the field out")
    ] = None
    logprobs: Annotated[StrictBool | None, only(one_of(False), "logprobs_not_supported", NO_LOGPROBS)] = None
    top_logprobs: Annotated[
        Annotated[int, whole(0, 20)] | None, only(one_of(0), "logprobs_not_supported", NO_LOGPROBS)
    ] = None  # fmt: skip
    functions: Annotated[list[Any] | None, only(_empty, "legacy_tools_not_supported", _NO_LEGACY)] = None
    function_call: Annotated[Any, only(one_of("none", "auto"), "legacy_tools_not_supported", _NO_LEGACY)] = None
    grammar: _Refused = None
    json_schema: _Refused = None
    guided_json: _Refused = None
    guided_regex: _Refused = None
    guided_choice: _Refused = None
    guided_grammar: _Refused = None
    modalities: Annotated[
        list[StrictStr] | None,
        only(lambda value: value == ["text"], "modality_not_supported", "only [\"text\"]"),
    ] = None  # fmt: skip
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None,
        only(one_of("medium"), "verbosity_not_supported", "only medium; ask for the length in the prompt"),
    ] = None
    store: Annotated[StrictBool | None, only(one_of(False), "store_not_supported", "chat answers are not stored")] = (
        None
    )
    web_search_options: Annotated[Any, never("web_search_not_supported", "this server does not search the web")] = None
    moderation: Annotated[
        Any, never("moderation_not_supported", "this server does not moderate")
    ] = None  # fmt: skip
    mm_processor_kwargs: Annotated[
        dict[str, Any] | None,
        only(_no_value, "mm_processor_kwargs_not_supported", "this server reads text only; leave the field out"),
    ] = None
    graft: Annotated[
        StrictStr | None, only(one_of(""), "unknown_graft", "this server has no grafts; leave the field out")
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

    @property
    def form(self) -> Form | None:
        """The form that the answer must have. Raises ApiError: two are asked for."""
        asked = None if self.response_format is None else self.response_format.form("response_format")
        return only_form(asked, self.structured_outputs)

    @property
    def toolset(self) -> Toolset:
        """Declared tools and the choice among them. Raises ApiError: they cannot be had."""
        return declare(self.tools or (), self.tool_choice, parallel=self.parallel_tool_calls is not False)


def messages_for_template(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """The conversation as the template reads it: parts, one name for reasoning, results in the order of their calls."""
    # A client may have cut the beginning off, and legacy calls have no ids but their names.
    turns = [_for_template(message) for message in messages]
    return paired(turns, leading_results=True, unique_ids=False)


def _for_template(message: ChatMessage) -> dict[str, Any]:
    content: str | list[dict[str, Any]]
    if isinstance(message.content, list):
        content = [{"type": "text", "text": part.value} for part in message.content]
    else:
        content = message.content if message.content is not None else (message.refusal or "")
    if message.role in ("tool", "function"):
        return result_turn(message.tool_call_id or message.name or "", content)
    if message.role != "assistant":
        return {"role": message.role, "content": content}
    calls = [_call(call) for call in message.tool_calls or ()]
    if message.function_call is not None:
        called = message.function_call
        calls.append(historic_call(called.name, called.name, called.arguments))
    thought = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    return assistant_turn(content, reasoning=thought, calls=calls)


def _call(call: ToolCall) -> dict[str, Any]:
    if call.function is not None:
        return historic_call(call.id, call.function.name, call.function.arguments)
    assert call.custom is not None  # checked by the model
    return historic_call(call.id, call.custom.name, call.custom.input, "custom")
