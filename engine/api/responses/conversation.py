"""Items of a whole chain to the messages that the chat template reads (spec/serving.md §8.1).

Consecutive assistant items are one turn: reasoning, then text, then calls. Results stand directly after their calls.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from engine.api.errors import ApiError, invalid
from engine.api.responses.tools import flat_name
from engine.api.tools import assistant_turn, historic_call, result_turn

_CALLS = {"function_call": "function", "custom_tool_call": "custom"}
_RESULTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}


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
        if item["type"] not in _CALLS or item["status"] == "completed":
            reader.take(item, "previous_response_id")
    for index, item in enumerate(items):
        reader.take(item, f"input[{index}]")
    reader.close_turn()
    if not reader.asked:
        raise invalid("input holds no user message with text", code="invalid_prompt", param="input")
    first = [] if instructions is None else [{"role": "developer", "content": instructions}]
    return first + reader.messages


class _Reader:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.asked = False
        self._ids: set[str] = set()
        self._call_ids: set[str] = set()
        self._new_turn()

    def _new_turn(self) -> None:
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: dict[str, dict[str, Any]] = {}
        self._results: dict[str, dict[str, Any]] = {}
        self._open = False

    def take(self, item: dict[str, Any], place: str) -> None:
        """Add one item."""
        if item["id"] in self._ids:
            raise invalid(f"{place}.id {item['id'][:80]!r} is used twice", code="invalid_value", param=f"{place}.id")
        self._ids.add(item["id"])
        kind = item["type"]
        if kind in _RESULTS:
            self._result(item, place)
            return
        if self._results:
            self.close_turn(place)
        if kind == "reasoning":
            if self._texts or self._calls:
                raise _disordered(place)
            self._open = True
            self._thoughts += [part["text"] for part in item["content"]]
        elif kind in _CALLS:
            self._call(item, place)
        elif item["role"] == "assistant":
            if self._calls:
                raise _disordered(place)
            self._open = True
            self._texts += [_text(part) for part in item["content"]]
        else:
            self.close_turn(place)
            texts = [_text(part) for part in item["content"]]
            self.asked = self.asked or (item["role"] == "user" and any(texts))
            self.messages.append({"role": item["role"], "content": _parts(texts)})

    def _call(self, item: dict[str, Any], place: str) -> None:
        identity = item["call_id"]
        if identity in self._call_ids:
            raise _unpaired(place, f"call_id {identity[:80]!r} is used by two calls")
        self._call_ids.add(identity)
        self._calls[identity] = item
        self._open = True

    def _result(self, item: dict[str, Any], place: str) -> None:
        identity = item["call_id"]
        call = self._calls.get(identity)
        if call is None:
            raise _unpaired(place, f"no call {identity[:80]!r} stands directly before this result")
        if identity in self._results:
            raise _unpaired(place, f"the call {identity[:80]!r} has two results")
        if call["type"] != _RESULTS[item["type"]] or item.get("name", call["name"]) != call["name"]:
            raise _unpaired(place, f"the result is of another kind or name than the call {identity[:80]!r}")
        self._results[identity] = item

    def close_turn(self, place: str = "input") -> None:
        """End the assistant's turn with its results, in the order of the calls."""
        if not self._open:
            return
        answered = [identity in self._results for identity in self._calls]
        if answered != sorted(answered, reverse=True):
            missing = list(self._calls)[answered.index(False)]
            raise _unpaired(place, f"the call {missing[:80]!r} has no result, but a later one has")
        self.messages.append(
            assistant_turn(
                _parts(self._texts) if self._texts else "",
                reasoning="".join(self._thoughts) if self._thoughts else None,
                calls=[_historic(call) for call in self._calls.values()],
            )
        )
        for identity in self._calls:
            if identity in self._results:
                output = self._results[identity]["output"]
                content = output if isinstance(output, str) else _parts([_text(part) for part in output])
                self.messages.append(result_turn(identity, content))
        self._new_turn()


def _text(part: dict[str, Any]) -> str:
    text: str = part["refusal"] if part["type"] == "refusal" else part["text"]
    return text


def _parts(texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


def _historic(item: dict[str, Any]) -> dict[str, Any]:
    name = flat_name(item.get("namespace"), item["name"])
    if item["type"] == "custom_tool_call":
        return historic_call(item["call_id"], name, item["input"], "custom")
    return historic_call(item["call_id"], name, item["arguments"])


def _disordered(place: str) -> ApiError:
    return invalid(
        f"{place}: an assistant turn is reasoning, then text, then calls", code="invalid_assistant_history", param=place
    )


def _unpaired(place: str, why: str) -> ApiError:
    return invalid(f"{place}: {why}", code="invalid_tool_history", param=place)
