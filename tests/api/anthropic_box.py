"""Requests in Anthropic's terms, and a checker of the order of stream events (spec/serving.md §9)."""

import json
import re
from typing import Any

from tests.api.box import Box, Reply

OFF = {"thinking": {"type": "disabled"}}


def body(script: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A small request whose answer is scripted; thinking is off unless asked for."""
    text = "hello" if script is None else json.dumps({"script": script}, ensure_ascii=False)
    return {"model": "any-label", "max_tokens": 512, "messages": [{"role": "user", "content": text}]} | OFF | fields


def ask(box: Box, script: dict[str, Any] | None = None, **fields: Any) -> Reply:
    return box.request("POST", "/v1/messages?beta=true", body(script, **fields))


def frames(reply: Reply) -> list[tuple[str, Any]]:
    """(event, data) of a strict stream: a name and a data line in each frame, comments between."""
    parts = reply.body.decode().split("\n\n")
    assert parts.pop() == ""
    found = []
    for part in parts:
        if part == ": keep-alive":
            continue
        matched = re.fullmatch(r"event: (\w+)\ndata: ([^\n]+)", part)
        assert matched, part
        data = json.loads(matched[2])
        assert data["type"] == matched[1]
        found.append((matched[1], data))
    return found


def message_of(events: list[tuple[str, Any]]) -> dict[str, Any]:
    """The message that a whole, well-formed stream describes; every rule about order is checked."""
    names = [name for name, _ in events]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    assert all(name.startswith("content_block_") for name in names[1:-2])
    message: dict[str, Any] = events[0][1]["message"]
    assert message["content"] == []
    assert (message["stop_reason"], message["stop_sequence"]) == (None, None)
    assert message["usage"]["output_tokens"] == 0
    block: dict[str, Any] | None = None
    arguments = ""
    for name, data in events[1:-2]:
        assert data["index"] == len(message["content"])
        if name == "content_block_start":
            assert block is None
            block, arguments = data["content_block"], ""
            empty = {
                "thinking": {"type": "thinking", "thinking": "", "signature": ""},
                "text": {"type": "text", "text": ""},
            }
            if block["type"] == "tool_use":
                assert block["input"] == {}
            else:
                assert block == empty[block["type"]]
        elif name == "content_block_delta":
            assert block is not None
            delta = data["delta"]
            match delta["type"]:
                case "thinking_delta":
                    assert block["signature"] == ""
                    block["thinking"] += delta["thinking"]
                case "signature_delta":
                    block["signature"] += delta["signature"]
                case "text_delta":
                    block["text"] += delta["text"]
                case "input_json_delta":
                    arguments += delta["partial_json"]
                case other:
                    raise AssertionError(other)
        else:
            assert name == "content_block_stop"
            assert block is not None
            assert block["type"] != "thinking" or block["signature"]
            if block["type"] == "tool_use":
                block["input"] = json.loads(arguments or "{}")
            message["content"].append(block)
            block = None
    assert block is None
    kinds = [one["type"] for one in message["content"]]
    assert kinds == sorted(kinds, key=["thinking", "text", "tool_use"].index)
    end = events[-2][1]
    assert set(end["delta"]) == {"stop_reason", "stop_sequence"}
    totals = {name: end[name] for name in ("usage", "constraint") if name in end}
    whole: dict[str, Any] = message | end["delta"] | totals
    return whole


def same_answer(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal but for the ids that every answer makes."""
    assert _plain(one) == _plain(other)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    assert re.fullmatch(r"msg_[0-9a-f]{16}", message["id"])
    content = []
    for block in message["content"]:
        if block["type"] == "tool_use":
            assert re.fullmatch(r"toolu_[0-9a-f]{16}", block["id"])
        content.append({name: value for name, value in block.items() if name not in ("id", "signature")})
    return {name: value for name, value in message.items() if name != "id"} | {"content": content}
