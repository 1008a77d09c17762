"""What a request may tell the chat template: thinking, effort, and free variables (spec/serving.md §6.3)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.text.errors import PromptError

# API spelling → the template's rung; `none` is not a rung, it turns thinking off.
RUNGS: Mapping[str, str | None] = {
    "none": None,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "xhigh",
    "xhigh": "xhigh",
    "max": "xhigh",
}
KWARGS = "chat_template_kwargs"

_SWITCHES = ("enable_thinking", "preserve_thinking")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED = frozenset(
    {
        # what the server itself decides
        "messages", "conversation", "tools", "tools_in_user_message", "chat_template", "tokenize", "tokenizer",
        "tokenizer_kwargs", "add_generation_prompt", "continue_final_message", "add_special_tokens", "padding",
        "truncation", "max_length", "return_dict", "return_tensors", "return_assistant_tokens_mask",
        # names of the template language and of its globals
        "raise_exception", "strftime_now", "range", "dict", "lipsum", "cycler", "joiner", "namespace", "loop", "self",
        "super", "caller", "varargs", "kwargs", "context", "environment", "true", "false", "none", "True", "False",
        "None",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TemplateOptions:
    """Resolved options. `thinking` and `preserve_thinking` are None when nobody said anything."""

    thinking: bool | None
    effort: str | None  # a rung: low, medium or xhigh
    preserve_thinking: bool | None
    variables: Mapping[str, Any]

    def values(self) -> dict[str, Any]:
        """Variables for the template; what nobody asked for is left undefined, so the template's default holds."""
        values = dict(self.variables)
        if self.thinking is not None:
            values["enable_thinking"] = self.thinking
        if self.effort is not None:
            values["reasoning_effort"] = self.effort
        if self.preserve_thinking is not None:
            values["preserve_thinking"] = self.preserve_thinking
        return values


def resolve_options(
    *,
    enable_thinking: bool | None = None,
    reasoning_effort: str | None = None,
    preserve_thinking: bool | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    default_thinking: bool | None = None,
    default_effort: str | None = None,
    default_preserve_thinking: bool | None = None,
) -> TemplateOptions:
    """Combine the request's fields, its `chat_template_kwargs`, and the server's defaults.

    The defaults belong to `--no-thinking` (False), `--reasoning-effort` and `--preserve-thinking` (True).
    `default_effort` serves only requests that think and state no effort.

    Raises:
        PromptError: `conflicting_template_option` when one option is given twice with different values or an effort
            contradicts `enable_thinking`; `invalid_template_option` for a wrong type, an unknown effort, or a name
            in `template_kwargs` that is reserved.
    """
    kwargs = dict(template_kwargs or {})
    check_names(kwargs)
    given: dict[str, Any] = {
        "enable_thinking": enable_thinking,
        "preserve_thinking": preserve_thinking,
        "reasoning_effort": reasoning_effort,
    }
    for name, value in given.items():
        _check_type(name, value, name)
        other = kwargs.pop(name, None)
        _check_type(name, other, f"{KWARGS}.{name}")
        if value is None:
            given[name] = other
        elif other is not None and other != value:
            raise PromptError(
                "conflicting_template_option", f"{name} is {value!r} and {KWARGS}.{name} is {other!r}; send one", name
            )
    effort, thinking = given["reasoning_effort"], given["enable_thinking"]
    if effort is not None:
        wanted = RUNGS[effort] is not None
        if thinking is not None and thinking != wanted:
            raise PromptError(
                "conflicting_template_option",
                f"reasoning_effort {effort!r} contradicts enable_thinking {str(thinking).lower()}; send one of them",
                "reasoning_effort",
            )
        thinking = wanted
    if thinking is None:
        thinking = default_thinking
    if effort is None and thinking is not False:
        effort = default_effort
    preserve = given["preserve_thinking"]
    return TemplateOptions(
        thinking=thinking,
        effort=None if effort is None or thinking is False else RUNGS[effort],
        preserve_thinking=default_preserve_thinking if preserve is None else preserve,
        variables=kwargs,
    )


def check_names(kwargs: Mapping[str, Any]) -> None:
    """Refuse names that would reach something other than a template variable.

    Raises:
        PromptError: `invalid_template_option`, naming the key.
    """
    for name in kwargs:
        if not _NAME.fullmatch(name):
            raise PromptError(
                "invalid_template_option",
                f"{KWARGS}: {name[:64]!r} is not a variable name (a letter, then letters, digits and _, 64 at most)",
                KWARGS,
            )
        if name in _RESERVED or name.endswith(("_token", "_tokens")):
            raise PromptError(
                "invalid_template_option", f"{KWARGS}.{name} is reserved and cannot be set", f"{KWARGS}.{name}"
            )


def _check_type(name: str, value: Any, param: str) -> None:
    if value is None:
        return
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise PromptError("invalid_template_option", f"{param} must be true or false, not {value!r}", param)
    elif not isinstance(value, str) or value not in RUNGS:
        raise PromptError("invalid_template_option", f"{param} must be one of {', '.join(RUNGS)}", param)
