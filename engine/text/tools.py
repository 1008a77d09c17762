"""Declared tools, and which of them may be called how often (spec/serving.md §6.5)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.text.errors import PromptError

Kind = Literal["function", "custom"]

NAME = re.compile(r"[A-Za-z0-9_-]+")
CUSTOM_INPUT = "input"
LONGEST_NAME = 64  # Anthropic Messages allows 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One declared tool. `parameters` is the JSON schema of its arguments, its members in the order of the request.

    A custom tool takes one text without a schema; make it with `custom_tool`.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    kind: Kind = "function"
    input_examples: Sequence[Any] | None = None

    @property
    def schema(self) -> Mapping[str, Any]:
        """The parameters; a tool that declares none takes an empty object."""
        return {"type": "object", "properties": {}} if self.parameters is None else self.parameters

    def declaration(self) -> dict[str, Any]:
        """What the chat template is given, members in the order of spec/serving.md §6.5."""
        function: dict[str, Any] = {"name": self.name, "parameters": self.schema, "strict": self.strict}
        if self.description is not None:
            function["description"] = self.description
        if self.input_examples:
            function["input_examples"] = list(self.input_examples)
        return {"type": "function", "function": function}


def custom_tool(name: str, description: str | None = None, grammar: str | None = None, syntax: str = "lark") -> Tool:
    """A free-text tool, shown to the model as a strict function of one string.

    The `grammar` is told to the model and not enforced.
    """
    told = [description] if description else []
    if grammar is not None:
        told.append(f"The input follows this {syntax} grammar:\n{grammar}")
    schema = {
        "type": "object",
        "properties": {CUSTOM_INPUT: {"type": "string"}},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }
    return Tool(name=name, description="\n\n".join(told) or None, parameters=schema, strict=True, kind="custom")


def check_tools(tools: Sequence[Tool], *, longest: int = LONGEST_NAME, field: str = "tools[{}].function.name") -> None:
    """Refuse names that the wire format cannot carry, and two tools of one name.

    `field` is the request field of a tool's name, `{}` standing for its index.

    Raises:
        PromptError: `invalid_tool_name`, `duplicate_tool_name`, or `invalid_json_schema` for parameters that do not
            describe an object.
    """
    seen: dict[str, int] = {}
    for index, tool in enumerate(tools):
        param = field.format(index)
        if not NAME.fullmatch(tool.name) or len(tool.name) > longest:
            raise PromptError(
                "invalid_tool_name",
                f"{param}: {tool.name[:80]!r} is not a tool name; one has 1 to {longest} of A-Z a-z 0-9 _ -",
                param,
            )
        if tool.name in seen:
            raise PromptError(
                "duplicate_tool_name", f"{param}: {tool.name!r} is also the name of tool {seen[tool.name]}", param
            )
        seen[tool.name] = index
        kind = tool.schema.get("type", "object")
        if kind != "object":
            raise PromptError(
                "invalid_json_schema",
                f"the parameters of {tool.name!r} have type {kind!r}; arguments are an object",
                f"tools[{index}]",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """How many calls an answer may hold, and of which tools.

    Attributes:
        minimum, maximum: bounds on the number of calls; None: any number.
        names: the tools that may be called; None: every declared one. Declarations stay in the prompt all the same.
    """

    minimum: int = 0
    maximum: int | None = None
    names: frozenset[str] | None = None

    @classmethod
    def auto(cls, *, parallel: bool = True, names: Iterable[str] | None = None) -> "ToolChoice":
        """Text, or any number of calls; without `parallel` at most one."""
        return cls(maximum=None if parallel else 1, names=None if names is None else frozenset(names))

    @classmethod
    def none(cls) -> "ToolChoice":
        """Calls are impossible."""
        return cls(maximum=0, names=frozenset())

    @classmethod
    def required(cls, *, parallel: bool = True, names: Iterable[str] | None = None) -> "ToolChoice":
        """At least one call (`required`, Anthropic `any`)."""
        return cls(minimum=1, maximum=None if parallel else 1, names=None if names is None else frozenset(names))

    @classmethod
    def named(cls, name: str, *, several: bool = False) -> "ToolChoice":
        """Exactly one call of this tool (OpenAI), or one and more (`several`: Anthropic with parallel use)."""
        return cls(minimum=1, maximum=None if several else 1, names=frozenset({name}))

    @property
    def forced(self) -> bool:
        """An answer without a call would break the choice."""
        return self.minimum > 0

    def callable(self, tools: Iterable[Tool]) -> dict[str, Tool]:
        """The tools that may be called, by name, in the order of their declaration."""
        if self.maximum == 0:
            return {}
        return {tool.name: tool for tool in tools if self.names is None or tool.name in self.names}

    def check(self, tools: Sequence[Tool], param: str = "tool_choice") -> None:
        """Raises PromptError `invalid_tool_choice`: a name is not declared, or a call is due and none is possible."""
        for name in sorted(self.names or ()):
            if all(name != tool.name for tool in tools):
                raise PromptError("invalid_tool_choice", f"{param}: no tool is named {name[:80]!r}", param)
        if self.forced and not self.callable(tools):
            raise PromptError("invalid_tool_choice", f"{param} demands a call, and there is no tool to call", param)

    def satisfied(self, calls: int) -> bool:
        """Whether an answer with so many calls keeps to the choice."""
        return calls >= self.minimum and (self.maximum is None or calls <= self.maximum)
