"""Bodies and a strict reader for the Responses tests."""

import json
from typing import Any

from tests.api.box import Box, Reply

OFF = {"effort": "none"}


def scripted(script: dict[str, Any]) -> str:
    """User text that makes the scripted engine answer so."""
    return json.dumps({"script": script}, ensure_ascii=False)


def body(script: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A request without thinking."""
    text = "hello" if script is None else scripted(script)
    return {"model": "nano", "input": text, "reasoning": OFF} | fields


def ask(box: Box, script: dict[str, Any] | None = None, **fields: Any) -> Reply:
    """Ask for what the script says."""
    return box.request("POST", "/v1/responses", body(script, **fields))


def stream(box: Box, script: dict[str, Any] | None = None, **fields: Any) -> list[dict[str, Any]]:
    """The checked events of a streamed answer."""
    reply = ask(box, script, stream=True, **fields)
    assert reply.status == 200, reply.body
    assert reply.headers["Content-Type"] == "text/event-stream"
    return checked(events_of(reply.body))


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """Events of a stream; strict about frames."""
    frames = raw.decode().split("\n\n")
    assert frames.pop() == ""
    found: list[dict[str, Any]] = []
    for frame in frames:
        if frame == ": keep-alive":
            continue
        name, data = frame.split("\n")
        assert (name[:7], data[:6]) == ("event: ", "data: ")
        event = json.loads(data[6:])
        assert event["type"] == name[7:]
        found.append(event)
    return found


class Checker:
    """The state machine that every stream must keep to: what is open, what was said, and that it adds up."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None
        self.text = ""
        self.part = False
        self.ended = ""
        self.identity: dict[str, Any] = {}

    def take(self, number: int, event: dict[str, Any]) -> None:
        assert not self.ended, f"{event['type']} after {self.ended}"
        assert event["sequence_number"] == number
        kind = event["type"].removeprefix("response.")
        if kind in ("created", "in_progress", "completed", "incomplete", "failed"):
            self.whole(number, kind, event["response"])
            return
        if kind == "output_item.added":
            assert self.open is None
            self.open, self.text, self.part = event["item"], "", False
            assert event["output_index"] == len(self.items)
            assert self.open["status"] == "in_progress"
            assert not self.open.get("content")
            assert not self.open.get("arguments")
            assert not self.open.get("input")
            return
        assert self.open is not None, kind
        assert event["output_index"] == len(self.items)
        if kind == "output_item.done":
            assert not self.part
            self.closed(event["item"])
            return
        assert event["item_id"] == self.open["id"]
        step = kind.rpartition(".")[2]
        if kind.startswith("content_part"):
            assert event["content_index"] == 0
            assert self.part == (step == "done")
            self.part = step == "added"
            assert event["part"]["text"] == self.text
            return
        expected = {
            "message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments",
            "custom_tool_call": "custom_tool_call_input",
        }  # fmt: skip
        assert kind == f"{expected[self.open['type']]}.{step}"
        if self.open["type"] in ("message", "reasoning"):
            assert self.part
        if step == "delta":
            assert event["delta"]
            self.text += event["delta"]
        else:
            key = "text" if "text" in event else "arguments" if "arguments" in event else "input"
            assert event[key] == self.text
            assert event.get("name", self.open.get("name")) == self.open.get("name")

    def closed(self, item: dict[str, Any]) -> None:
        assert self.open is not None
        assert (item["id"], item["type"]) == (self.open["id"], self.open["type"])
        assert item["status"] in ("completed", "incomplete")
        if item["type"] in ("message", "reasoning"):
            assert [part["text"] for part in item["content"]] == [self.text]
        else:
            assert item.get("arguments", item.get("input")) == self.text
            assert item["call_id"] == self.open["call_id"]
        self.items.append(item)
        self.open = None

    def whole(self, number: int, kind: str, response: dict[str, Any]) -> None:
        identity = {key: response[key] for key in ("id", "object", "created_at", "model", "tools", "temperature")}
        self.identity = self.identity or identity
        assert self.identity == identity
        if number < 2:
            assert kind == ("created", "in_progress")[number]
            assert (response["status"], response["output"]) == ("in_progress", [])
            return
        assert kind in ("completed", "incomplete", "failed")
        assert response["status"] == kind
        self.ended = kind
        if kind == "failed":
            assert set(response["error"]) == {"code", "message"}
            assert response["usage"] is None
            return
        assert self.open is None
        assert response["output"] == self.items
        assert response["error"] is None
        assert response["usage"]["total_tokens"] == (
            response["usage"]["input_tokens"] + response["usage"]["output_tokens"]
        )


def checked(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events, after the state machine accepted them."""
    checker = Checker()
    for number, event in enumerate(events):
        checker.take(number, event)
    assert checker.ended
    return events


def bare(response: dict[str, Any]) -> Any:
    """A response without what differs from one answer to the next."""
    secret = {"id", "created_at", "completed_at", "call_id"}

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(inner) for key, inner in value.items() if key not in secret}
        return [strip(inner) for inner in value] if isinstance(value, list) else value

    return strip(response)
