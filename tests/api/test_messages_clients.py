"""Messages with the official client, and with a request of the shape that Claude Code sends."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.api.anthropic_box import frames, message_of
from tests.api.box import Box
from tests.api.test_messages import CALL, WRITE

OFF: Any = {"type": "disabled"}


def say(script: dict[str, Any]) -> Any:
    return [{"role": "user", "content": json.dumps({"script": script}, ensure_ascii=False)}]


@pytest.fixture(scope="module")
def client(box: Box) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{box.port}", api_key="none", max_retries=0) as made:
        yield made


def test_create_stream_and_count(client: anthropic.Anthropic) -> None:
    messages = say({"text": "hm</think>\n\nhello 🌍"})
    thinking: Any = {"type": "adaptive"}
    whole = client.messages.create(model="local", max_tokens=300, messages=messages, thinking=thinking)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert isinstance(whole.content[1], anthropic.types.TextBlock)
    assert whole.content[1].text == "hello 🌍"
    assert (whole.stop_reason, whole.model) == ("end_turn", "local")
    assert (whole._request_id or "").startswith("req_")
    with client.messages.stream(model="local", max_tokens=300, messages=messages, thinking=thinking) as stream:
        assert "".join(stream.text_stream) == "hello 🌍"
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens == whole.usage.input_tokens
    counted = client.messages.count_tokens(model="local", messages=messages, thinking=thinking)
    assert counted.input_tokens == whole.usage.input_tokens
    # What came back goes in again as it is.
    again = [*messages, {"role": "assistant", "content": final.content}, *say({"text": "ok"})]
    assert client.messages.create(model="local", max_tokens=9, messages=again, thinking=OFF).stop_reason == "end_turn"


def test_a_tool_round_trip(client: anthropic.Anthropic) -> None:
    tools: Any = [WRITE]
    messages = say({"text": "I write.\n\n" + CALL})
    with client.messages.stream(model="m", max_tokens=300, messages=messages, tools=tools, thinking=OFF) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_message()
    assert kinds.count("content_block_start") == 2
    call = first.content[1]
    assert isinstance(call, anthropic.types.ToolUseBlock)
    assert (first.stop_reason, call.name, call.input) == ("tool_use", "write", {"path": "a.txt", "lines": 3})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "3 lines"}
    script = {"type": "text", "text": say({"text": "done"})[0]["content"]}
    history: Any = [
        *messages,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result, script]},
    ]
    second = client.messages.create(model="m", max_tokens=300, messages=history, tools=tools, thinking=OFF)
    assert isinstance(second.content[0], anthropic.types.TextBlock)
    assert second.content[0].text == "done"


def test_models(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["nano"]
    assert client.models.retrieve("nano").display_name == "nano"
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")


def test_error_classes(client: anthropic.Anthropic) -> None:
    def ask(script: dict[str, Any], **fields: Any) -> Any:
        return client.messages.create(model="m", max_tokens=50, messages=say(script), thinking=OFF, **fields)

    with pytest.raises(anthropic.BadRequestError) as bad:
        ask({}, extra_body={"temperature": 2})
    assert "temperature" in str(bad.value)
    assert bad.value.request_id
    for code, kind in (("overloaded", 529), ("queue_timeout", 504), ("unavailable", 503)):
        with pytest.raises(anthropic.InternalServerError) as failed:
            ask({"reject": code})
        assert failed.value.status_code == kind
    with pytest.raises(anthropic.InternalServerError):
        ask({"text": "x", "error": "boom"})
    with ask({"text": "x", "error": "boom"}, stream=True) as stream, pytest.raises(anthropic.APIStatusError) as late:
        list(stream)
    assert "api_error" in str(late.value)


def coding_request(script: dict[str, Any], billing: str = "cch=0a1b2") -> dict[str, Any]:
    """Our own request of the shape that Claude Code sends; every part of it that is peculiar is there."""
    mark = {"type": "ephemeral", "ttl": "1h"}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"path": {"type": "string", "description": "Where."}, "lines": {"type": "integer"}},
        "required": ["path"],
        "additionalProperties": False,
    }
    return {
        "model": "local",
        "max_tokens": 32000,
        "stream": True,
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; {billing};"},
            {"type": "text", "text": "You help with code.", "cache_control": mark},
            {"type": "text", "text": "Work in the current folder.", "cache_control": mark},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<reminder>be kind</reminder>"}]},
            {"role": "system", "content": "Tools may change between turns."},
            {"role": "user", "content": [{"type": "text", "text": "Write a.txt."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I will.", "signature": "EqQBCkYIAxgCKkA="},
                    {"type": "tool_use", "id": "toolu_01", "name": "write", "input": {"path": "a.txt"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_01", "content": "no space", "is_error": True},
                    {"type": "text", "text": json.dumps({"script": script}), "cache_control": mark},
                ],
            },
            {"role": "system", "content": [{"type": "text", "text": "The disk is full."}]},
        ],
        "tools": [
            {"name": "write", "description": "Write a file.", "input_schema": schema, "eager_input_streaming": True}
        ],
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "user_0_account__session_0"},
    }


HEADERS = {
    "Authorization": "Bearer none",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,unheard-of-2026-01-01",
    "x-app": "cli",
    "X-Stainless-Lang": "js",
}


def test_a_coding_client(box: Box) -> None:
    assert box.request("HEAD", "/").status == 200
    asked = coding_request({"text": "Too full.</think>\n\nI free space.\n\n" + CALL})
    reply = box.request("POST", "/v1/messages?beta=true", asked, HEADERS)
    assert reply.status == 200, reply.body
    message = message_of(frames(reply))
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["stop_reason"] == "tool_use"
    # The line that changes with each request changes nothing, so the whole prompt can be reused (A6).
    other = coding_request({"text": "Too full.</think>\n\nI free space.\n\n" + CALL}, "cch=ffff; more=1")
    counts = [box.request("POST", "/v1/messages/count_tokens?beta=true", one, HEADERS).json for one in (asked, other)]
    assert counts[0] == counts[1] == {"input_tokens": message["usage"]["input_tokens"]}
