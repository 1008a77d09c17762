"""Calls and results of earlier turns, made ready for the chat template (spec/serving.md §6.4 and §8.1).

Calls are those of Chat Completions: `{"id", "type": "function", "function": {"name", "arguments"}}`, or of type
`custom` with `{"name", "input"}`. A result is a message of role `tool` with `tool_call_id` and `content`; it may say
`is_error`, and `name` and `kind` of the call it belongs to. The other APIs bring their items into this shape first.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.text.errors import PromptError
from engine.text.tool_values import parse_json
from engine.text.tools import CUSTOM_INPUT

TOOL_ERROR = "[tool_error]"


def tool_history(
    messages: Sequence[Mapping[str, Any]],
    *,
    field: str = "messages[{}]",
    leading_results: bool = False,
    complete: bool = False,
    unique_ids: bool = True,
) -> list[dict[str, Any]]:
    """Copies of the messages: results in the order of their calls and marked when they are errors, arguments decoded.

    Results directly follow their calls and belong to the first so many of them, one each. `field` is the request field
    of a message, `{}` standing for its index.

    Args:
        leading_results: a history may begin with results, whose calls are not in it (Anthropic Messages).
        complete: when any other message follows the calls, each of them needs its result (Anthropic Messages).
        unique_ids: no two calls of the history have one id; else no two of one turn.

    Raises:
        PromptError: `invalid_tool_history`, with the field at fault.
    """
    made: list[dict[str, Any]] = []
    known: set[str] = set()
    index = 0
    while index < len(messages):
        message = messages[index]
        calls = list(_calls(message, field.format(index)))
        if not calls:
            if message.get("role") == "tool":
                if made or not leading_results:
                    raise _fault("a tool result must directly follow the calls it belongs to", field.format(index))
                while index < len(messages) and messages[index].get("role") == "tool":
                    made.append(_marked(messages[index]))
                    index += 1
                continue
            made.append(dict(message))
            index += 1
            continue
        ids = [call["id"] for call in calls]
        for number, call_id in enumerate(ids):
            if call_id in known or call_id in ids[:number]:
                raise _fault(f"two calls have the id {call_id!r}", f"{field.format(index)}.tool_calls[{number}].id")
        known.update(ids if unique_ids else ())
        asked = index
        made.append({**message, "tool_calls": calls})
        results: dict[int, dict[str, Any]] = {}
        index += 1
        while index < len(messages) and messages[index].get("role") == "tool":
            number = _answered(messages[index], calls, field.format(index))
            if number in results:
                raise _fault(f"the call {ids[number]!r} has two results", field.format(index))
            results[number] = _marked(messages[index])
            index += 1
        due = len(calls) if complete and index < len(messages) else len(results)
        for number in range(due):
            if number not in results:
                raise _fault(f"the call {ids[number]!r} has no result", f"{field.format(asked)}.tool_calls[{number}]")
        made += [results[number] for number in sorted(results)]
    return made


def decode_arguments(text: str, param: str) -> dict[str, Any]:
    """The arguments of a call from their JSON text; the empty text is a call without arguments.

    Raises:
        PromptError: `invalid_tool_history`, unless it is a JSON object.
    """
    try:
        arguments = parse_json(text) if text.strip() else {}
    except ValueError as error:
        raise _fault(f"not JSON: {error}", param) from error
    if not isinstance(arguments, dict):
        raise _fault("not a JSON object", param)
    return arguments


def _calls(message: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """The calls of a message in the shape that templates read: functions with a mapping of arguments."""
    calls = message.get("tool_calls") or ()
    if calls and message.get("role") != "assistant":
        raise _fault("only an assistant message holds calls", f"{where}.tool_calls")
    for number, call in enumerate(calls):
        param = f"{where}.tool_calls[{number}]"
        if not isinstance(call, Mapping):
            raise _fault("not an object", param)
        kind = call.get("type", "function")
        body = call.get(kind) if kind in ("function", "custom") else None
        if not isinstance(body, Mapping) or not isinstance(body.get("name"), str):
            raise _fault("neither a function call nor a custom call with a name", param)
        if not isinstance(call.get("id"), str) or not call["id"]:
            raise _fault("a call needs an id", f"{param}.id")
        if kind == "custom":
            arguments: Any = {CUSTOM_INPUT: body.get("input", "")}
        else:
            arguments = body.get("arguments", "")
            if isinstance(arguments, str):
                arguments = decode_arguments(arguments, f"{param}.function.arguments")
            if not isinstance(arguments, Mapping):
                raise _fault("not a JSON object", f"{param}.function.arguments")
        yield {"id": call["id"], "type": kind, "function": {"name": body["name"], "arguments": arguments}}


def _answered(result: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], where: str) -> int:
    """Which of the calls a result belongs to."""
    call_id = result.get("tool_call_id")
    for number, call in enumerate(calls):
        if call["id"] == call_id:
            if result.get("kind", call["type"]) != call["type"]:
                raise _fault(f"the call {call_id!r} is of type {call['type']}", where)
            if (result.get("name") or call["function"]["name"]) != call["function"]["name"]:
                raise _fault(f"the call {call_id!r} is of the tool {call['function']['name']!r}", where)
            return number
    raise _fault(f"no call of the turn before has the id {call_id!r}", f"{where}.tool_call_id")


def _marked(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result as the template reads it; an error begins with a line that says so."""
    made = {key: value for key, value in result.items() if key not in ("is_error", "kind")}
    if result.get("is_error"):
        content = made.get("content") or ""
        line = TOOL_ERROR + "\n"
        made["content"] = line + content if isinstance(content, str) else [{"type": "text", "text": line}, *content]
    return made


def _fault(message: str, param: str) -> PromptError:
    return PromptError("invalid_tool_history", f"{param}: {message}", param)
