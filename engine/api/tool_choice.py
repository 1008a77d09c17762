"""OpenAI's `tool_choice`, in the nested form of Chat and the flat form of Responses (spec/serving.md §6.5, §7.1)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.api.fields import refuse
from engine.api.tools import is_hosted
from engine.text.tools import ToolChoice

# What OpenAPI says of the field.
SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": ["auto", "none", "required", None]},
        {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"enum": ["function", "custom", "allowed_tools"]}},
        },
    ]
}

Mode = Literal["auto", "none", "required", "named"]


@dataclass(frozen=True, slots=True)
class Choice:
    """What a request says. `tools` are (namespace or None, name) of the tools it lists; None: it lists none."""

    mode: Mode = "auto"
    tools: tuple[tuple[str | None, str], ...] | None = None

    def resolve(self, flat: Callable[[str | None, str], str], *, parallel: bool) -> ToolChoice:
        """In terms of declared names, which `flat` makes of a namespace and a name."""
        names = None if self.tools is None else [flat(*tool) for tool in self.tools]
        if self.mode == "none":
            return ToolChoice.none()
        if self.mode == "named" and names is not None:
            return ToolChoice.named(names[0])
        if self.mode == "required":
            return ToolChoice.required(parallel=parallel, names=names)
        return ToolChoice.auto(parallel=parallel, names=names)


def read_choice(value: Any) -> Choice:
    """The choice in `value`.

    Raises:
        PydanticCustomError: it is no choice, or one of a tool that a server would run.
    """
    if value is None:
        return Choice()
    if isinstance(value, str):
        modes: dict[str, Mode] = {"auto": "auto", "none": "none", "required": "required"}
        if value not in modes:
            raise refuse("invalid_value", "should be auto, none, required or an object that names tools")
        return Choice(modes[value])
    if not isinstance(value, Mapping):
        raise refuse("invalid_type", "should be a string or an object")
    kind = value.get("type")
    if kind in ("function", "custom"):
        return Choice("named", (_named(value),))
    if kind == "allowed_tools":
        inner = value.get("allowed_tools", value)
        mode = inner.get("mode", "auto") if isinstance(inner, Mapping) else None
        tools = inner.get("tools") if isinstance(inner, Mapping) else None
        if not isinstance(tools, list) or mode not in ("auto", "required"):
            raise refuse("invalid_tool_choice", "allowed_tools needs mode, auto or required, and a list of tools")
        named = [_named(tool) for tool in tools if not (isinstance(tool, Mapping) and is_hosted(tool.get("type")))]
        return Choice("required" if mode == "required" else "auto", tuple(named))
    if is_hosted(kind):
        raise refuse("tool_choice_not_supported", "tools that the server would run are not offered")
    raise refuse("invalid_tool_choice", "the type of a choice is function, custom or allowed_tools")


def _named(value: Any) -> tuple[str | None, str]:
    if isinstance(value, Mapping):
        kind = value.get("type")
        inner = value.get(kind, value) if kind in ("function", "custom") else None
        if isinstance(inner, Mapping):
            name, namespace = inner.get("name"), inner.get("namespace")
            if isinstance(name, str) and (namespace is None or isinstance(namespace, str)):
                return namespace, name
    raise refuse("invalid_tool_choice", "a chosen tool has the type function or custom, and a name")
