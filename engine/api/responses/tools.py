"""Tools of a Responses request: flat declarations, and namespaces whose members the model sees as `ns__name` (§8.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictBool, StrictStr, Tag, field_validator

from engine.api.errors import invalid
from engine.api.fields import never, one_of, only, refuse
from engine.api.tool_choice import Choice
from engine.api.tools import Toolset, is_hosted, toolset
from engine.text.tools import Tool, custom_tool

JOIN = "__"


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: StrictStr
    description: StrictStr | None = None
    defer_loading: Annotated[
        StrictBool | None,
        only(one_of(False), "deferred_tools_not_supported", "tools are not loaded later; leave defer_loading out"),
    ] = None
    output_schema: Annotated[
        Any, never("tool_output_schema_not_supported", "results are not checked; leave output_schema out")
    ] = None
    allowed_callers: list[StrictStr] | None = None

    @field_validator("allowed_callers")
    @classmethod
    def _direct(cls, callers: list[str] | None) -> list[str] | None:
        if callers is not None and "direct" not in callers:
            raise refuse("tool_caller_not_supported", "only the model calls tools; allow the caller direct")
        return callers


class FunctionTool(_Declared):
    """A function with a JSON schema."""

    type: Literal["function"]
    parameters: dict[str, Any] | None = None
    strict: StrictBool | None = None

    def tool(self, name: str, description: str | None) -> Tool:
        """As the model is told."""
        return Tool(name=name, description=description, parameters=self.parameters, strict=self.strict or False)

    def wire(self) -> dict[str, Any]:
        """As it is echoed."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict or False,
        }


class TextFormat(BaseModel):
    """Any text."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class GrammarFormat(BaseModel):
    """Text of a grammar, which is told to the model and not enforced."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: StrictStr


class CustomTool(_Declared):
    """A tool that takes one text."""

    type: Literal["custom"]
    format: Annotated[TextFormat | GrammarFormat, Field(discriminator="type")] | None = None

    def tool(self, name: str, description: str | None) -> Tool:
        """As the model is told."""
        if isinstance(self.format, GrammarFormat):
            return custom_tool(name, description, self.format.definition, self.format.syntax)
        return custom_tool(name, description)

    def wire(self) -> dict[str, Any]:
        """As it is echoed."""
        format = {"type": "text"} if self.format is None else self.format.model_dump()
        return {"type": "custom", "name": self.name, "description": self.description, "format": format}


Member = Annotated[FunctionTool | CustomTool, Field(discriminator="type")]


class Namespace(BaseModel):
    """Tools that belong together."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["namespace"]
    name: StrictStr
    description: StrictStr | None = None
    tools: list[Member]

    def wire(self) -> dict[str, Any]:
        """As it is echoed."""
        tools = [tool.wire() for tool in self.tools]
        return {"type": "namespace", "name": self.name, "description": self.description, "tools": tools}


class HostedTool(BaseModel):
    """A tool that a server would run; dropped."""

    type: StrictStr


def _kind(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "function tool"
    kind = value.get("type")
    if is_hosted(kind):
        return "hosted tool"
    return f"{kind} tool" if kind in ("function", "custom", "namespace") else None


DeclaredTool = Annotated[
    Annotated[FunctionTool, Tag("function tool")]
    | Annotated[CustomTool, Tag("custom tool")]
    | Annotated[Namespace, Tag("namespace tool")]
    | Annotated[HostedTool, Tag("hosted tool")],
    Discriminator(
        _kind,
        custom_error_type="tool_type_not_supported",
        custom_error_message="the type of a tool is function, custom or namespace",
    ),
]


def flat_name(namespace: str | None, name: str) -> str:
    """The name that the model sees."""
    return name if namespace is None else f"{namespace}{JOIN}{name}"


@dataclass(frozen=True)
class Declared:
    """The tools of one request. `names` gives (namespace or None, name) of the name that the model sees."""

    toolset: Toolset
    names: dict[str, tuple[str | None, str]]
    wire: list[dict[str, Any]]


def declare(tools: Sequence[DeclaredTool], choice: Choice, *, parallel: bool) -> Declared:
    """Flatten and check the declarations.

    Raises:
        ApiError: a name is bad, repeated or undeclared, or the choice cannot be kept.
    """
    flat: list[Tool] = []
    places: list[str] = []
    names: dict[str, tuple[str | None, str]] = {}
    for index, declared in enumerate(tools):
        place = f"tools[{index}]"
        if isinstance(declared, Namespace):
            if not declared.name:
                raise invalid(f"{place}.name is empty", code="invalid_tool_name", param=f"{place}.name")
            for number, member in enumerate(declared.tools):
                name = flat_name(declared.name, member.name)
                told = "\n\n".join(text for text in (declared.description, member.description) if text)
                flat.append(member.tool(name, told or None))
                places.append(f"{place}.tools[{number}]")
                names[name] = (declared.name, member.name)
        elif not isinstance(declared, HostedTool):
            flat.append(declared.tool(declared.name, declared.description))
            places.append(place)
            names[declared.name] = (None, declared.name)
    wire = [declared.wire() for declared in tools if not isinstance(declared, HostedTool)]
    return Declared(toolset(flat, choice.resolve(flat_name, parallel=parallel), fields=places), names, wire)
