"""Items of a whole chain to the messages that the chat template reads (spec/serving.md §8.1).

Consecutive assistant items are one turn: reasoning, then text, then calls. Results stand directly after their calls.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from engine.api.errors import ApiError, invalid
from engine.api.responses.tools import flat_name
from engine.api.tools import assistant_turn, historic_call, paired, result_turn
from engine.text.tools import Kind

_KINDS: dict[str, Kind] = {
    "function_call": "function",
    "custom_tool_call": "custom",
    "function_call_output": "function",
    "custom_tool_call_output": "custom",
}


def messages(
    earlier: Iterable[dict[str, Any]], items: Sequence[dict[str, Any]], instructions: str | None = None
) -> list[dict[str, Any]]:
    """The conversation. `earlier` are the items of the chain, `items` those of this request.

    Raises:
        ApiError: an order that no conversation has; the param is the item's place in `input`.
    """
    reader = _Reader()
    for item in earlier:
        # A call that was cut was never made.
        if item["type"] not in ("function_call", "custom_tool_call") or item["status"] == "completed":
            reader.take(item, "previous_response_id")
    for index, item in enumerate(items):
        reader.take(item, f"input[{index}]")
    reader.close_turn()
    if not reader.asked:
        raise invalid("input holds no user message with text", code="invalid_prompt", param="input")
    try:
        made = paired(reader.messages)
    except ApiError as error:
        raise reader.placed(error) from error
    first = [] if instructions is None else [{"role": "developer", "content": instructions}]
    return first + made


class _Reader:
    """Joins items into turns. `_places` says where each message and each of its calls came from."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.asked = False
        self._places: list[tuple[str, list[str]]] = []
        self._ids: set[str] = set()
        self._flat: dict[tuple[str, str], str] = {}
        self._new_turn()

    def _new_turn(self) -> None:
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._from: list[str] = []

    def take(self, item: dict[str, Any], place: str) -> None:
        """Add one item."""
        if item["id"] in self._ids:
            raise invalid(f"{place}.id {item['id'][:80]!r} is used twice", code="invalid_value", param=f"{place}.id")
        self._ids.add(item["id"])
        kind = item["type"]
        if kind == "reasoning":
            self._continue(place, last=bool(self._texts or self._calls))
            self._thoughts += [part["text"] for part in item["content"]]
        elif kind in ("function_call", "custom_tool_call"):
            self._continue(place, last=False)
            self._calls.append(self._call(item))
        elif kind in _KINDS:
            self.close_turn()
            self._add(self._result(item), place)
        elif item["role"] == "assistant":
            self._continue(place, last=bool(self._calls))
            self._texts += [_text(part) for part in item["content"]]
        else:
            self.close_turn()
            texts = [_text(part) for part in item["content"]]
            self.asked = self.asked or (item["role"] == "user" and any(texts))
            self._add({"role": item["role"], "content": _parts(texts)}, place)

    def _continue(self, place: str, *, last: bool) -> None:
        """Go on with the assistant's turn; `last`: it holds what may only follow this item."""
        if last:
            raise invalid(
                f"{place}: an assistant turn is reasoning, then text, then calls",
                code="invalid_assistant_history",
                param=place,
            )
        self._from.append(place)

    def _call(self, item: dict[str, Any]) -> dict[str, Any]:
        identity, kind = item["call_id"], _KINDS[item["type"]]
        name = self._flat[identity, item["name"]] = flat_name(item.get("namespace"), item["name"])
        return historic_call(identity, name, item["input"] if kind == "custom" else item["arguments"], kind)

    def _result(self, item: dict[str, Any]) -> dict[str, Any]:
        identity, output, name = item["call_id"], item["output"], item.get("name")
        content = output if isinstance(output, str) else _parts([_text(part) for part in output])
        result = result_turn(identity, content) | {"kind": _KINDS[item["type"]]}
        return result if name is None else result | {"name": self._flat.get((identity, name), name)}

    def close_turn(self) -> None:
        """End the assistant's turn."""
        if self._from:
            content = _parts(self._texts) if self._texts else ""
            reasoning = "".join(self._thoughts) if self._thoughts else None
            calls = self._from[len(self._from) - len(self._calls) :]
            self._add(assistant_turn(content, reasoning=reasoning, calls=self._calls), self._from[0], calls)
            self._new_turn()

    def _add(self, message: dict[str, Any], place: str, calls: list[str] | None = None) -> None:
        self.messages.append(message)
        self._places.append((place, calls or []))

    def placed(self, error: ApiError) -> ApiError:
        """An error about a message, about the item that it came from."""

        def place(found: re.Match[str]) -> str:
            message, calls = self._places[int(found["message"])]
            return message if found["call"] is None else calls[int(found["call"])]

        pattern = r"^messages\[(?P<message>\d+)\](\.tool_calls\[(?P<call>\d+)\])?(\.(id|tool_call_id))?"
        shown = re.sub(pattern, place, error.message)
        return invalid(shown, code=error.code or "", param=re.sub(pattern, place, error.param or ""))


def _text(part: dict[str, Any]) -> str:
    text: str = part["refusal"] if part["type"] == "refusal" else part["text"]
    return text


def _parts(texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]
