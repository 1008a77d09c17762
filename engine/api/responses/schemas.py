"""Bodies of `POST /v1/responses` and `POST /v1/responses/input_tokens` (spec/serving.md §8.1, §8.4).

They are closed: a field that is not listed is refused, so that nothing a client relies on is silently ignored.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    WithJsonSchema,
)

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
from engine.api.forms import FlatFormat, StructuredOutputs, only_form
from engine.api.responses.items import Input
from engine.api.responses.tools import DeclaredTool
from engine.api.tool_choice import SCHEMA, Choice, read_choice

ENCRYPTED = "reasoning.encrypted_content"

_CLOSED = ConfigDict(extra="forbid")


class Reasoning(BaseModel):
    """How much to think. Summaries are not written; asking for one is accepted and answered with null."""

    model_config = _CLOSED

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Annotated[Any, never("reasoning_option_not_supported", "leave reasoning.context out")] = None
    mode: Annotated[Any, never("reasoning_option_not_supported", "leave reasoning.mode out")] = None


class Text(BaseModel):
    """The form of the answer."""

    model_config = _CLOSED

    format: FlatFormat | None = None
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None,
        only(one_of("medium"), "verbosity_not_supported", "only medium; ask for the length in the prompt"),
    ] = None


class StreamOptions(BaseModel):
    """Padding against traffic analysis is accepted and not added."""

    model_config = _CLOSED

    include_obfuscation: StrictBool | None = None


class CacheOptions(BaseModel):
    """Hints (spec/serving.md §6.8)."""

    model_config = _CLOSED

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


def _choice(value: Any) -> Any:
    """Check a choice and keep what was sent, which the answer echoes."""
    read_choice(value)
    return value


def _included(names: list[str]) -> list[str]:
    for name in names:
        if name != ENCRYPTED:
            raise refuse("include_not_supported", f"{name[:60]!r} cannot be included; known: {ENCRYPTED}")
    return names


_NOT_DISABLED = "prompts are never cut; send truncation disabled and shorten the input"


class PromptRequest(BaseModel):
    """What decides the prompt."""

    model_config = _CLOSED

    model: StrictStr
    input: Input
    instructions: StrictStr | None = None
    previous_response_id: StrictStr | None = None
    tools: list[DeclaredTool] | None = None
    tool_choice: Annotated[Any, AfterValidator(_choice), WithJsonSchema(SCHEMA)] = None
    parallel_tool_calls: StrictBool | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    truncation: Annotated[
        Literal["disabled", "auto"] | None, only(one_of("disabled"), "truncation_not_supported", _NOT_DISABLED)
    ] = None
    chat_template_kwargs: dict[str, Any] | None = None
    preserve_thinking: StrictBool | None = None
    graft: Annotated[
        StrictStr | None, only(one_of(""), "unknown_graft", "this server has no grafts; leave the field out")
    ] = None  # fmt: skip

    @property
    def choice(self) -> Choice:
        """What may be called."""
        return read_choice(self.tool_choice)

    @property
    def format_echo(self) -> dict[str, Any]:
        """`text.format` as the response repeats it."""
        if self.text is None or self.text.format is None:
            return {"type": "text"}
        return self.text.format.model_dump(by_alias=True, exclude_none=True)

    @property
    def effort(self) -> str | None:
        """How much to think."""
        return None if self.reasoning is None else self.reasoning.effort


_Pair = Annotated[StrictStr, Field(max_length=512)]
_Key = Annotated[StrictStr, Field(max_length=64)]


class CreateRequest(PromptRequest):
    """`POST /v1/responses`."""

    # Length and sampling
    max_output_tokens: Annotated[int, whole(0, LARGEST_COUNT)] | None = None
    temperature: Annotated[float, real(0, 2)] | None = None
    top_p: Annotated[float, real(0, 1)] | None = None
    max_tool_calls: Annotated[int, whole(0, LARGEST_COUNT)] | None = None
    thinking_budget: Annotated[int, whole(1, 2**32 - 1)] | None = None
    structured_outputs: StructuredOutputs | None = None

    # Delivery
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    store: StrictBool | None = None
    include: Annotated[list[StrictStr], AfterValidator(_included)] | None = None
    metadata: Annotated[dict[_Key, _Pair], Field(max_length=16)] | None = None

    # Hints and labels
    client_metadata: dict[str, Any] | None = None
    prompt_cache_key: Annotated[StrictStr, Field(min_length=1)] | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: Annotated[StrictStr, Field(max_length=64)] | None = None
    user: StrictStr | None = None
    service_tier: Annotated[
        StrictStr | None, only(one_of("auto", "default"), "service_tier_not_supported", "only auto and default")
    ] = None  # fmt: skip

    # What this version lacks
    background: Annotated[
        StrictBool | None,
        only(one_of(False), "background_not_supported", "answers are not made in the background; use stream"),
    ] = None
    top_logprobs: Annotated[
        Annotated[int, whole(0, 20)] | None, only(one_of(0), "logprobs_not_supported", NO_LOGPROBS)
    ] = None  # fmt: skip
    conversation: Annotated[
        Any, never("conversations_not_supported", "conversations are not kept; use previous_response_id")
    ] = None
    prompt: Annotated[
        Any, never("prompt_templates_not_supported", "prompt templates are not kept; send instructions and input")
    ] = None
    context_management: Annotated[
        Any, never("context_management_not_supported", "the context is not managed here; send a shorter input")
    ] = None
    moderation: Annotated[Any, never("moderation_not_supported", "this server does not moderate")] = None

    @property
    def form(self) -> Form | None:
        """The form that the answer must have. Raises ApiError: two are asked for."""
        asked = None if self.text is None or self.text.format is None else self.text.format.form("text.format")
        return only_form(asked, self.structured_outputs)

    @property
    def kept(self) -> bool:
        """Whether the answer is stored."""
        return self.store is not False

    @property
    def sealed(self) -> bool:
        """Whether reasoning items carry `encrypted_content`."""
        return ENCRYPTED in (self.include or ())


class InputTokensRequest(PromptRequest):
    """`POST /v1/responses/input_tokens`."""
