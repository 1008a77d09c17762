"""The Anthropic Messages request as pydantic models (spec/serving.md §9).

Unknown fields are ignored, as are metadata, service tier and beta headers. A field that asks for what this version
lacks is refused by name.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictStr,
    Tag,
    field_validator,
    model_validator,
)

from engine.api.constraints import Form
from engine.api.fields import LARGEST_COUNT, Effort, never, only, real, refuse, whole
from engine.api.forms import FlatFormat, StructuredOutputs, only_form
from engine.api.schemas import LONGEST_STOP

LONGEST_NAME = 128
STOP_CHARACTERS = 16 * 1024
LONGEST_LABEL = 512


class CacheControl(BaseModel):
    """A hint where the prompt may be cached. It changes nothing: prefixes are reused wherever they match."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(BaseModel):
    """Text."""

    type: Literal["text"]
    text: StrictStr
    cache_control: CacheControl | None = None


class ThinkingBlock(BaseModel):
    """A thought of an earlier turn. The signature may be anything."""

    type: Literal["thinking"]
    thinking: StrictStr
    signature: Any = None
    cache_control: Annotated[
        Any,
        never("invalid_cache_control", "a thinking block cannot be marked; mark the block after it"),
    ] = None


class RedactedThinkingBlock(BaseModel):
    """A thought of another server, in a form that only that server reads; it is left out."""

    type: Literal["redacted_thinking"]
    data: Any = None


def _direct(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "direct"


class ToolUseBlock(BaseModel):
    """A call of an earlier turn."""

    type: Literal["tool_use"]
    id: Annotated[StrictStr, Field(min_length=1, max_length=256)]
    name: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    input: dict[str, Any]
    caller: Annotated[
        Any, only(_direct, "tool_caller_not_supported", "only the model itself calls tools here")
    ] = None  # fmt: skip
    cache_control: CacheControl | None = None


class OtherBlock(BaseModel):
    """Any other kind of block; refused with the reason."""

    type: StrictStr

    @field_validator("type")
    @classmethod
    def _check(cls, kind: str) -> str:
        if kind == "image":
            raise refuse("vision_disabled", "this server reads text only; remove the image block")
        if kind == "document":
            raise refuse("documents_not_supported", "documents are not read; paste their text into a text block")
        if kind == "search_result":
            raise refuse("search_results_not_supported", "search results are not read; paste them into a text block")
        if kind in ("server_tool_use", "mcp_tool_use") or kind.endswith("_tool_result"):
            raise refuse("server_tools_not_supported", f"this server runs no tools; remove the {kind[:40]} block")
        if kind == "container_upload":
            raise refuse("files_not_supported", "this server stores no files; remove the container_upload block")
        raise refuse(
            "content_block_not_supported",
            f"unknown block type {kind[:40]!r}; known: text, thinking, redacted_thinking, tool_use, tool_result",
        )


def _kind_of(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(kind, str):
        return "other block"
    return f"{kind} block" if kind in _KNOWN else "other block"


def _result_kind(value: Any) -> str | None:
    return "text block" if _kind_of(value) == "text block" else "other block"


_KNOWN = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")

# Tags have a blank in them, so that none of them is a member of a block when the place of an error is worked out.
ResultBlock = Annotated[
    Annotated[TextBlock, Tag("text block")] | Annotated[OtherBlock, Tag("other block")], Discriminator(_result_kind)
]


def _text_or(blocks: str) -> Discriminator:
    return Discriminator(lambda value: blocks if isinstance(value, list) else "plain text")


class ToolResultBlock(BaseModel):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[StrictStr, Field(min_length=1, max_length=256)]
    content: (
        Annotated[
            Annotated[StrictStr, Tag("plain text")] | Annotated[list[ResultBlock], Tag("result blocks")],
            _text_or("result blocks"),
        ]
        | None
    ) = None
    is_error: StrictBool | None = None
    cache_control: CacheControl | None = None


Block = Annotated[
    Annotated[TextBlock, Tag("text block")]
    | Annotated[ThinkingBlock, Tag("thinking block")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking block")]
    | Annotated[ToolUseBlock, Tag("tool_use block")]
    | Annotated[ToolResultBlock, Tag("tool_result block")]
    | Annotated[OtherBlock, Tag("other block")],
    Discriminator(_kind_of),
]
Content = Annotated[
    Annotated[StrictStr, Tag("plain text")] | Annotated[list[Block], Tag("content blocks")], _text_or("content blocks")
]
SystemContent = Annotated[
    Annotated[StrictStr, Tag("plain text")] | Annotated[list[ResultBlock], Tag("system blocks")],
    _text_or("system blocks"),
]

_BLOCKS = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}


class InputMessage(BaseModel):
    """One turn of the conversation. A system turn may stand anywhere but between calls and their results."""

    role: StrictStr
    content: Content

    @field_validator("role")
    @classmethod
    def _role(cls, role: str) -> str:
        if role not in _BLOCKS:
            raise refuse("unsupported_role", f"unknown role {role[:40]!r}; known: {', '.join(_BLOCKS)}")
        return role

    @model_validator(mode="after")
    def _check(self) -> "InputMessage":
        for block in self.content if isinstance(self.content, list) else ():
            if block.type not in _BLOCKS[self.role]:
                known = ", ".join(_BLOCKS[self.role])
                raise refuse(
                    "content_block_not_supported", f"a {self.role} turn holds no {block.type} blocks; only {known}"
                )
        return self


_SERVER_TOOLS = ("web_search", "web_fetch", "code_execution", "tool_search", "advisor")


class DeclaredTool(BaseModel):
    """A tool that the client runs."""

    type: StrictStr | None = None
    name: StrictStr
    description: StrictStr | None = None
    input_schema: dict[str, Any]
    input_examples: list[dict[str, Any]] | None = None
    strict: StrictBool | None = None
    defer_loading: Annotated[
        StrictBool | None,
        only(lambda value: not value, "deferred_tools_not_supported", "every declared tool is loaded; leave it out"),
    ] = None
    allowed_callers: Annotated[
        list[StrictStr] | None,
        only(lambda value: "direct" in value, "tool_caller_not_supported", "only the model itself calls: \"direct\""),
    ] = None  # fmt: skip
    cache_control: CacheControl | None = None

    @model_validator(mode="before")
    @classmethod
    def _own(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind == "custom":
            return value
        if kind.startswith(_SERVER_TOOLS):
            raise refuse("server_tools_not_supported", f"this server runs no tools; it has no {kind[:40]!r}")
        if kind.endswith("_toolset"):
            raise refuse("toolsets_not_supported", f"this server has no {kind[:40]!r}; declare each tool by itself")
        raise refuse(
            "anthropic_tools_not_supported",
            f"this server does not know {kind[:40]!r}; declare the tool with its input_schema and without a type",
        )


class ToolChoiceField(BaseModel):
    """Which tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: StrictStr | None = None
    disable_parallel_tool_use: StrictBool | None = None

    @model_validator(mode="after")
    def _check(self) -> "ToolChoiceField":
        if (self.type == "tool") != (self.name is not None):
            raise refuse("invalid_tool_choice", 'name goes with the type "tool", and only with it')
        return self


class ThinkingField(BaseModel):
    """Whether to think first, and for how many tokens at most."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, whole(1024, LARGEST_COUNT)] | None = None
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _check(self) -> "ThinkingField":
        if self.budget_tokens is not None and self.type != "enabled":
            raise refuse("invalid_value", f'budget_tokens goes with the type "enabled", not with "{self.type}"')
        return self


class OutputConfig(BaseModel):
    """How much to think, and in what form to answer."""

    effort: Effort | None = None
    format: FlatFormat | None = None


def _stops(value: list[str]) -> list[str]:
    if sum(map(len, value)) > STOP_CHARACTERS:
        raise refuse("invalid_value", f"all stop sequences together have {STOP_CHARACTERS} characters at most")
    return value


class PromptRequest(BaseModel):
    """What decides the prompt: `POST /v1/messages/count_tokens`."""

    model_config = ConfigDict(extra="ignore")

    model: Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_LABEL)]
    messages: Annotated[list[InputMessage], Field(min_length=1)]
    system: SystemContent | None = None
    tools: list[DeclaredTool] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: ThinkingField | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    preserve_thinking: StrictBool | None = None
    graft: Annotated[
        StrictStr | None, only(lambda value: not value, "unknown_graft", "this server has no grafts; leave it out")
    ] = None
    container: Annotated[
        Any, never("container_not_supported", "this server has no containers; leave the field out")
    ] = None
    mcp_servers: Annotated[
        list[Any] | None,
        only(lambda value: not value, "toolsets_not_supported", "this server connects to no others; declare tools"),
    ] = None


class MessagesRequest(PromptRequest):
    """`POST /v1/messages`."""

    max_tokens: Annotated[
        Annotated[int, whole(0, LARGEST_COUNT)] | None,
        only(bool, "cache_prewarm_not_supported", "0 would only warm a cache; ask for at least 1 token"),
    ] = None
    stream: StrictBool | None = None
    temperature: Annotated[float, real(0, 1)] | None = None
    top_p: Annotated[float, real(0, 1)] | None = None
    top_k: Annotated[int, whole(0, 20)] | None = None
    stop_sequences: (
        Annotated[
            list[Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_STOP)]], AfterValidator(_stops)
        ]
        | None
    ) = None  # fmt: skip
    structured_outputs: StructuredOutputs | None = None
    tool_constraints: Literal["basic", "auto"] | None = None

    @property
    def form(self) -> Form | None:
        """The form that the answer must have. Raises ApiError: two are asked for."""
        asked = None
        if self.output_config is not None and self.output_config.format is not None:
            asked = self.output_config.format.form("output_config.format")
        return only_form(asked, self.structured_outputs)
