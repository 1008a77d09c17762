"""Input items of a Responses request: checked on the way in, kept as plain JSON objects (spec/serving.md §8.1)."""

import base64
import json
import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictStr, Tag, field_validator, model_validator

from engine.api.fields import refuse

Identity = Annotated[StrictStr, Field(min_length=1, max_length=256)]
CallName = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]

# How `encrypted_content` of a reasoning item begins when it is ours. It hides nothing: the server keeps no key, the
# thought is shown in clear beside it, and clients that drop the clear text (Codex) send this back instead.
OURS = "ninfer1."


def seal(thought: str) -> str:
    """The `encrypted_content` of a thought."""
    return OURS + base64.b64encode(thought.encode()).decode()


def unseal(sealed: str) -> str | None:
    """The thought, or None when `sealed` is not ours."""
    if not sealed.startswith(OURS):
        return None
    try:
        return base64.b64decode(sealed.removeprefix(OURS), validate=True).decode()
    except ValueError:
        return None


def new_id(prefix: str) -> str:
    """A fresh item id such as `msg_…`."""
    return f"{prefix}_{secrets.token_hex(16)}"


class CacheBreakpoint(BaseModel):
    """Where a client would like the cache to be written; a hint (spec/serving.md §6.8)."""

    mode: Literal["explicit"]


class Part(BaseModel):
    """One part of a message or of a tool's output; only text reaches the model."""

    model_config = ConfigDict(extra="ignore")

    type: StrictStr
    text: StrictStr | None = None
    refusal: StrictStr | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    @model_validator(mode="after")
    def _check(self) -> "Part":
        if self.type in ("input_text", "output_text"):
            if self.text is None:
                raise refuse("invalid_value", f"an {self.type} part needs the member text")
        elif self.type == "refusal":
            if self.refusal is None:
                raise refuse("invalid_value", "a refusal part needs the member refusal")
        elif self.type in ("input_image", "input_video"):
            raise refuse("vision_disabled", f"this server reads text only; remove the {self.type} part")
        elif self.type == "input_file":
            raise refuse("file_inputs_not_supported", "files are not read; paste their text into an input_text part")
        elif self.type == "input_audio":
            raise refuse("audio_inputs_not_supported", "audio is not read; send input_text parts")
        else:
            known = "input_text, output_text, refusal"
            raise refuse("modality_not_supported", f"unknown part type {self.type[:40]!r}; known: {known}")
        return self

    def wire(self) -> dict[str, Any]:
        """As it is kept."""
        if self.type == "refusal":
            return {"type": "refusal", "refusal": self.refusal}
        return {"type": self.type, "text": self.text} | ({"annotations": []} if self.type == "output_text" else {})


Parts = Annotated[
    Annotated[StrictStr, Tag("one text")] | Annotated[list[Part], Field(min_length=1), Tag("list of parts")],
    Discriminator(lambda value: "list of parts" if isinstance(value, list) else "one text"),
]


class _Item(BaseModel):
    model_config = ConfigDict(extra="ignore")

    id: Identity | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None

    def wire(self) -> dict[str, Any]:
        """As it is kept and listed."""
        raise AssertionError("each kind of item has its own form")


class Message(_Item):
    """A turn of text."""

    type: Literal["message"] = "message"
    role: StrictStr
    content: Parts

    @field_validator("role")
    @classmethod
    def _role(cls, role: str) -> str:
        if role not in ("user", "assistant", "system", "developer"):
            known = "user, assistant, system, developer"
            raise refuse("unsupported_role", f"unknown role {role[:40]!r}; known: {known}")
        return role

    @model_validator(mode="after")
    def _check(self) -> "Message":
        if self.role != "assistant" and isinstance(self.content, list):
            for part in self.content:
                if part.type != "input_text":
                    raise refuse(
                        "modality_not_supported", f"{part.type} belongs to assistant messages, not to {self.role}"
                    )
        return self

    def wire(self) -> dict[str, Any]:
        """As it is kept and listed."""
        if isinstance(self.content, str):
            kind = "output_text" if self.role == "assistant" else "input_text"
            parts = [Part(type=kind, text=self.content).wire()]
        else:
            parts = [part.wire() for part in self.content]
        identity = self.id or new_id("msg")
        return {"id": identity, "type": "message", "status": "completed", "role": self.role, "content": parts}


class ReasoningText(BaseModel):
    """A piece of a thought."""

    type: Literal["reasoning_text"]
    text: StrictStr


class Reasoning(_Item):
    """A thought of an earlier turn, in clear or as we sealed it."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: list[Any] | None = None
    encrypted_content: StrictStr | None = None

    @model_validator(mode="after")
    def _check(self) -> "Reasoning":
        if self.thought is None:
            raise refuse(
                "reasoning_content_not_supported",
                "a reasoning item needs its text: content with reasoning_text parts, or encrypted_content of this"
                " server; leave out what another server made",
            )
        return self

    @property
    def thought(self) -> str | None:
        """The text of the thought."""
        if self.content:
            return "".join(part.text for part in self.content)
        return None if self.encrypted_content is None else unseal(self.encrypted_content)

    def wire(self) -> dict[str, Any]:
        """As it is kept and listed."""
        content = [{"type": "reasoning_text", "text": self.thought}]
        return {"id": self.id or new_id("rs"), "type": "reasoning", "summary": [], "content": content}


class _Call(_Item):
    call_id: Identity
    name: CallName
    namespace: CallName | None = None

    @model_validator(mode="after")
    def _whole(self) -> "_Call":
        if self.status not in (None, "completed"):
            raise refuse("partial_tool_call_not_supported", "only completed calls can be replayed")
        return self

    def _head(self, prefix: str, kind: str) -> dict[str, Any]:
        head: dict[str, Any] = {"id": self.id or new_id(prefix), "type": kind, "status": "completed"}
        head |= {"call_id": self.call_id, "name": self.name}
        return head | ({} if self.namespace is None else {"namespace": self.namespace})


class FunctionCall(_Call):
    """A call of a function."""

    type: Literal["function_call"]
    arguments: StrictStr

    @field_validator("arguments")
    @classmethod
    def _object(cls, text: str) -> str:
        try:
            if text.strip() and not isinstance(json.loads(text), dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            raise refuse("invalid_tool_history", "arguments must be the text of a JSON object") from error
        return text

    def wire(self) -> dict[str, Any]:
        """As it is kept and listed."""
        return self._head("fc", "function_call") | {"arguments": self.arguments}


class CustomCall(_Call):
    """A call of a free-text tool."""

    type: Literal["custom_tool_call"]
    input: StrictStr

    def wire(self) -> dict[str, Any]:
        """As it is kept and listed."""
        return self._head("ctc", "custom_tool_call") | {"input": self.input}


class _Output(_Item):
    call_id: Identity
    output: Parts

    @model_validator(mode="after")
    def _whole(self) -> "_Output":
        if self.status not in (None, "completed"):
            raise refuse("partial_tool_result_not_supported", "only completed results can be replayed")
        if isinstance(self.output, list) and any(part.type != "input_text" for part in self.output):
            raise refuse("modality_not_supported", "a tool's output is a string or input_text parts")
        return self

    def _wire(self, prefix: str, kind: str) -> dict[str, Any]:
        output = self.output if isinstance(self.output, str) else [part.wire() for part in self.output]
        identity = self.id or new_id(prefix)
        return {"id": identity, "type": kind, "status": "completed", "call_id": self.call_id, "output": output}


class FunctionOutput(_Output):
    """What a function returned."""

    type: Literal["function_call_output"]

    def wire(self) -> dict[str, Any]:
        """As it is kept and listed."""
        return self._wire("fco", "function_call_output")


class CustomOutput(_Output):
    """What a free-text tool returned."""

    type: Literal["custom_tool_call_output"]
    name: StrictStr | None = None

    def wire(self) -> dict[str, Any]:
        """As it is kept and listed."""
        return self._wire("ctco", "custom_tool_call_output") | ({} if self.name is None else {"name": self.name})


_KINDS = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)


def _kind(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "message item"
    kind = value.get("type", "message" if "role" in value else None)
    return f"{kind} item" if kind in _KINDS else None


InputItem = Annotated[
    Annotated[Message, Tag("message item")]
    | Annotated[Reasoning, Tag("reasoning item")]
    | Annotated[FunctionCall, Tag("function_call item")]
    | Annotated[FunctionOutput, Tag("function_call_output item")]
    | Annotated[CustomCall, Tag("custom_tool_call item")]
    | Annotated[CustomOutput, Tag("custom_tool_call_output item")],
    Discriminator(
        _kind,
        custom_error_type="item_type_not_supported",
        custom_error_message=f"an item needs a type that this server reads: {', '.join(_KINDS)}",
    ),
]

Input = Annotated[
    Annotated[StrictStr, Tag("one text")] | Annotated[list[InputItem], Tag("list of items")],
    Discriminator(lambda value: "list of items" if isinstance(value, list) else "one text"),
]


def wire_items(given: Input) -> list[dict[str, Any]]:
    """The items as they are kept; a string is one user message."""
    if isinstance(given, str):
        return [Message(role="user", content=given).wire()]
    return [item.wire() for item in given]
