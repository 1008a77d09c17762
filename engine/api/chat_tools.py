"""Tools of a Chat request (spec/serving.md §7.1)."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictBool, StrictStr, Tag

from engine.api.tool_choice import Choice
from engine.api.tools import Toolset, is_hosted, toolset
from engine.text.tools import Tool, custom_tool


class Function(BaseModel):
    """A function with a JSON schema."""

    model_config = ConfigDict(extra="ignore")

    name: StrictStr
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    strict: StrictBool | None = None


class FunctionTool(BaseModel):
    """The declaration of a function."""

    type: Literal["function"]
    function: Function

    def tool(self) -> Tool:
        """As the model is told."""
        of = self.function
        return Tool(name=of.name, description=of.description, parameters=of.parameters, strict=of.strict or False)


class Grammar(BaseModel):
    """Told to the model and not enforced."""

    syntax: Literal["lark", "regex"]
    definition: StrictStr


class TextFormat(BaseModel):
    """Any text."""

    type: Literal["text"]


class GrammarFormat(BaseModel):
    """Text of a grammar."""

    type: Literal["grammar"]
    grammar: Grammar


class Custom(BaseModel):
    """A tool that takes one text."""

    model_config = ConfigDict(extra="ignore")

    name: StrictStr
    description: StrictStr | None = None
    format: Annotated[TextFormat | GrammarFormat, Field(discriminator="type")] | None = None


class CustomTool(BaseModel):
    """The declaration of a free-text tool."""

    type: Literal["custom"]
    custom: Custom

    def tool(self) -> Tool:
        """As the model is told."""
        of = self.custom
        if isinstance(of.format, GrammarFormat):
            return custom_tool(of.name, of.description, of.format.grammar.definition, of.format.grammar.syntax)
        return custom_tool(of.name, of.description)


class HostedTool(BaseModel):
    """A tool that a server would run; dropped."""

    type: StrictStr


def _kind(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "function tool"
    kind = value.get("type")
    if is_hosted(kind):
        return "hosted tool"
    return f"{kind} tool" if kind in ("function", "custom") else None


DeclaredTool = Annotated[
    Annotated[FunctionTool, Tag("function tool")]
    | Annotated[CustomTool, Tag("custom tool")]
    | Annotated[HostedTool, Tag("hosted tool")],
    Discriminator(
        _kind,
        custom_error_type="tool_type_not_supported",
        custom_error_message="the type of a tool is function or custom",
    ),
]


def declare(tools: Sequence[DeclaredTool], choice: Choice, *, parallel: bool) -> Toolset:
    """Check the declarations.

    Raises:
        ApiError: a name is bad, repeated or undeclared, or the choice cannot be kept.
    """
    own = {
        f"tools[{index}].{tool.type}": tool.tool()
        for index, tool in enumerate(tools)
        if not isinstance(tool, HostedTool)
    }
    wanted = choice.resolve(lambda _, name: name, parallel=parallel)
    return toolset(list(own.values()), wanted, fields=list(own))
