"""The output items of one answer as they grow; each change is an event of the stream (spec/serving.md §8.2, §8.3)."""

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from engine.api.generation import Event, TextDelta
from engine.api.responses.items import new_id, seal
from engine.api.tools import new_call_id
from engine.text.tool_events import CallArguments, CallEnd, CallStart

Status = Literal["completed", "incomplete"]
Change = dict[str, Any]


class _Text:
    """An item of one text part: a thought or a message."""

    def __init__(self, index: int, *, reasoning: bool, sealed: bool) -> None:
        self.index, self.reasoning, self._sealed = index, reasoning, sealed
        self._id = new_id("rs" if reasoning else "msg")
        self._pieces: list[str] = []
        self._kind = "reasoning_text" if reasoning else "output_text"

    def _part(self, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": self._kind, "text": text}
        return part if self.reasoning else part | {"annotations": []}

    def item(self, status: str) -> dict[str, Any]:
        """The item as it stands."""
        text = "".join(self._pieces)
        content = [] if status == "in_progress" else [self._part(text)]
        head = {"id": self._id, "type": "reasoning" if self.reasoning else "message", "status": status}
        if not self.reasoning:
            return head | {"role": "assistant", "content": content}
        item = head | {"summary": [], "content": content}
        return item | {"encrypted_content": seal(text) if content else None} if self._sealed else item

    def open(self) -> Iterator[Change]:
        """Events that begin it."""
        yield {"type": "response.output_item.added", "output_index": self.index, "item": self.item("in_progress")}
        yield self._change("response.content_part.added", part=self._part(""))

    def add(self, text: str) -> Iterator[Change]:
        """Events of more text."""
        self._pieces.append(text)
        yield self._change(f"response.{self._kind}.delta", delta=text) | ({} if self.reasoning else {"logprobs": []})

    def close(self, status: Status) -> Iterator[Change]:
        """Events that end it."""
        item = self.item(status)
        part = item["content"][0]
        done = self._change(f"response.{self._kind}.done", text=part["text"])
        yield done if self.reasoning else done | {"logprobs": []}
        yield self._change("response.content_part.done", part=part)
        yield {"type": "response.output_item.done", "output_index": self.index, "item": item}

    def _change(self, kind: str, **fields: Any) -> Change:
        return {"type": kind, "item_id": self._id, "output_index": self.index, "content_index": 0} | fields


class _Call:
    """One call of a function or of a free-text tool."""

    def __init__(self, index: int, kind: str, name: str, namespace: str | None) -> None:
        self.index = index
        self._custom = kind == "custom"
        self._id = f"{'ctc' if self._custom else 'fc'}_{secrets.token_hex(16)}"
        self._call_id = new_call_id()
        self._name, self._namespace = name, namespace
        self._pieces: list[str] = []

    @property
    def _named(self) -> dict[str, Any]:
        return {"name": self._name} | ({} if self._namespace is None else {"namespace": self._namespace})

    def item(self, status: str) -> dict[str, Any]:
        """The item as it stands."""
        kind, field = ("custom_tool_call", "input") if self._custom else ("function_call", "arguments")
        head = {"id": self._id, "type": kind, "status": status, "call_id": self._call_id}
        return head | self._named | {field: "".join(self._pieces)}

    def open(self) -> Iterator[Change]:
        """Events that begin it."""
        yield {"type": "response.output_item.added", "output_index": self.index, "item": self.item("in_progress")}

    def add(self, text: str) -> Iterator[Change]:
        """Events of more arguments."""
        self._pieces.append(text)
        yield self._change("delta") | {"delta": text}

    def close(self, status: Status) -> Iterator[Change]:
        """Events that end it."""
        text = "".join(self._pieces)
        yield self._change("done") | ({"input": text} if self._custom else self._named | {"arguments": text})
        yield {"type": "response.output_item.done", "output_index": self.index, "item": self.item(status)}

    def _change(self, step: str) -> Change:
        kind = "custom_tool_call_input" if self._custom else "function_call_arguments"
        return {"type": f"response.{kind}.{step}", "item_id": self._id, "output_index": self.index}


class Output:
    """Takes the events of an answer in order and says how the items change.

    Args:
        names: (namespace or None, name) of each name that the model may call.
        sealed: reasoning items carry `encrypted_content`.
    """

    def __init__(self, names: Mapping[str, tuple[str | None, str]], *, sealed: bool) -> None:
        self._names, self._sealed = names, sealed
        self._items: list[dict[str, Any]] = []
        self._open: _Text | _Call | None = None

    def items(self) -> list[dict[str, Any]]:
        """The items so far; one that is still growing is incomplete."""
        return self._items + ([] if self._open is None else [self._open.item("incomplete")])

    def take(self, event: Event) -> Iterator[Change]:
        """The changes that one event makes."""
        if isinstance(event, TextDelta):
            text = self._open if isinstance(self._open, _Text) and self._open.reasoning == event.reasoning else None
            if text is None:
                yield from self._close("completed")
                text = _Text(len(self._items), reasoning=event.reasoning, sealed=self._sealed)
                yield from self._begin(text)
            yield from text.add(event.text)
        elif isinstance(event, CallStart):
            yield from self._close("completed")
            namespace, name = self._names.get(event.name, (None, event.name))
            yield from self._begin(_Call(len(self._items), event.kind, name, namespace))
        elif isinstance(event, CallArguments) and self._open is not None:
            yield from self._open.add(event.text)
        elif isinstance(event, CallEnd):
            yield from self._close("completed")

    def finish(self, status: Status) -> Iterator[Change]:
        """The changes at the end. A completed answer without anything has an empty message."""
        if self._open is None and not self._items and status == "completed":
            yield from self._begin(_Text(0, reasoning=False, sealed=False))
        yield from self._close(status)

    def _begin(self, item: _Text | _Call) -> Iterator[Change]:
        self._open = item
        yield from item.open()

    def _close(self, status: Status) -> Iterator[Change]:
        if self._open is not None:
            item, self._open = self._open, None
            self._items.append(item.item(status))
            yield from item.close(status)
