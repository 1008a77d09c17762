"""Tools in no protocol's terms: what a request declares and allows, and the turns of a history that has calls.

A protocol turns its declarations into `Tool`s and its history into template messages with `assistant_turn`,
`result_turn` and `paired`; `engine.api.generation` turns the answer into text, `CallStart`, `CallArguments` and
`CallEnd`.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.api.errors import invalid
from engine.constraint.errors import ConstraintError
from engine.constraint.tools import check_strict
from engine.text import PromptError, tool_history
from engine.text.tool_calls import ToolParser
from engine.text.tool_stream import ToolCallStream
from engine.text.tools import LONGEST_NAME, Kind, Tool, ToolChoice, check_tools

# Tools that other servers run themselves are dropped, as the clients that send them expect (spec/serving.md §6.5).
LONGEST_PARAM = 300
HOSTED = ("web_search", "code_interpreter", "file_search", "image_generation", "computer_use", "mcp")


def is_hosted(kind: object) -> bool:
    """Whether a tool of this type would be run by the server."""
    return isinstance(kind, str) and kind.startswith(HOSTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolset:
    """The declared tools of one request, and which of them may be called."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = field(default_factory=ToolChoice)

    def declarations(self) -> list[dict[str, Any]]:
        """What the chat template is given. Tools that may not be called stay in the prompt."""
        return [tool.declaration() for tool in self.tools]

    def reader(self) -> ToolCallStream | None:
        """A reader for the answer, or None when nothing may be called."""
        parser = ToolParser(self.tools, self.choice)
        return ToolCallStream(parser) if parser.callable else None


NO_TOOLS = Toolset()


def toolset(
    tools: Sequence[Tool],
    choice: ToolChoice,
    *,
    longest: int = LONGEST_NAME,
    fields: Sequence[str] | None = None,
    choice_field: str = "tool_choice",
    schema_field: str = "parameters",
) -> Toolset:
    """Check declarations and choice. `fields`: for each tool the place of its members, such as `tools[2].function`.

    Raises:
        ApiError: a bad or repeated name, an undeclared choice, or something that this version cannot enforce.
    """
    places = [f"tools[{index}]" for index in range(len(tools))] if fields is None else fields
    try:
        check_tools(tools, longest=longest, field="tools[{}].name")
        choice.check(tools, choice_field)
    except PromptError as error:

        def placed(text: str) -> str:
            return re.sub(r"^tools\[(\d+)\]", lambda found: places[int(found[1])], text)

        raise invalid(placed(error.message), code=error.code, param=placed(error.param or "tools")) from error
    for tool, place in zip(tools, places, strict=True):
        if tool.strict and tool.kind == "function":
            try:
                check_strict(tool)
            except ConstraintError as error:
                param = f"{place}.{schema_field}{error.pointer}"[:LONGEST_PARAM]
                raise invalid(f"{param}: {error.message}", code=error.code, param=param) from error
    return Toolset(tools=tuple(tools), choice=choice)


def new_call_id() -> str:
    """OpenAI's form of a fresh call id."""
    return f"call_{secrets.token_hex(8)}"


def historic_call(
    identity: str, name: str, arguments: str | Mapping[str, Any], kind: Kind = "function"
) -> dict[str, Any]:
    """A call of the history in the shape of Chat; `arguments` of a custom tool is its raw input."""
    body = {"name": name, "input" if kind == "custom" else "arguments": arguments}
    return {"id": identity, "type": kind, kind: body}


Content = str | list[dict[str, Any]]


def assistant_turn(
    content: Content, *, reasoning: str | None = None, calls: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """One assistant message for the template; `calls` are made by `historic_call`."""
    turn: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning is not None:
        turn["reasoning_content"] = reasoning
    if calls:
        turn["tool_calls"] = list(calls)
    return turn


def result_turn(identity: str, content: Content, *, failed: bool = False) -> dict[str, Any]:
    """The result of the call `identity` for the template; one of a failed call says so (spec/serving.md §6.4)."""
    if failed:
        marker = "[tool_error]\n"
        content = marker + content if isinstance(content, str) else [{"type": "text", "text": marker}, *content]
    return {"role": "tool", "tool_call_id": identity, "content": content}


def paired(
    messages: Sequence[dict[str, Any]], *, leading_results: bool = False, unique_ids: bool = True
) -> list[dict[str, Any]]:
    """The history with its results in the order of their calls, by the rules of `tool_history`.

    Raises:
        ApiError: `invalid_tool_history`, the param being `messages[i]` or a member of it.
    """
    try:
        return tool_history(messages, leading_results=leading_results, unique_ids=unique_ids)
    except PromptError as error:
        raise invalid(error.message, code=error.code, param=error.param) from error
