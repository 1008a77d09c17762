"""Tools in Chat Completions against the scripted engine (spec/serving.md §6.5, §7; cases A2, A4, A8)."""

import json
import re
from typing import Any

import openai
import pytest

from tests.api.box import Box, chat_body

LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "see",
        "parameters": {"type": "object", "properties": {"zip": {"type": "string"}, "limit": {"type": "integer"}}},
    },
}
PATCH: dict[str, Any] = {"type": "custom", "custom": {"name": "patch"}}
TOOLS: dict[str, Any] = {"tools": [LOOK, PATCH]}


def call(name: str, **parameters: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


TWO = call("look", zip="02134", limit="5") + "\n" + call("patch", input='a\n"b"')


def joined(events: list[Any]) -> dict[str, Any]:
    """The message that a client builds from the deltas; strict about the order of their members."""
    message: dict[str, Any] = {"content": "", "reasoning_content": ""}
    calls: list[dict[str, Any]] = []
    for chunk in events:
        if chunk == "[DONE]" or not chunk["choices"]:
            continue
        delta = chunk["choices"][0]["delta"]
        for key in message:
            message[key] += delta.get(key, "")
        for part in delta.get("tool_calls", ()):
            kind = part.get("type") or calls[part["index"]]["type"]
            text = "input" if kind == "custom" else "arguments"
            if part["index"] == len(calls):
                assert part[kind][text] == ""
                assert part["id"]
                calls.append({"id": part["id"], "type": kind, kind: dict(part[kind])})
            else:
                assert part["index"] == len(calls) - 1  # one after the other
                assert set(part) == {"index", kind}
                calls[part["index"]][kind][text] += part[kind][text]
    return message | {"calls": calls}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Let me.\n\n" + TWO, {}),
        (TWO, {}),
        (TWO, {"parallel_tool_calls": False}),
        ("plain", {}),
        (call("look"), {"tool_choice": "none"}),
        (call("patch", input="x"), {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "custom", "name": "patch"}]}}),
        (call("look"), {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
            {"type": "custom", "custom": {"name": "patch"}}]}}}),
        (call("unknown"), {}),
        (call("look") + " and prose", {}),
        (call("look", zip="1 " * 40), {"max_tokens": 30}),
        ("hm</think>\n\n" + TWO, {"enable_thinking": True}),
        ("I go: " + call("look", zip="1"), {"enable_thinking": True}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("each", [1, 5])
def test_stream_and_whole_say_the_same(box: Box, text: str, fields: dict[str, Any], each: int) -> None:
    script = {"text": text, "each": each}
    choice = box.chat(script, **TOOLS, **fields).json["choices"][0]
    message = choice["message"]
    events = box.chat(script, stream=True, **TOOLS, **fields).events
    streamed = joined(events)
    assert streamed["content"] == (message["content"] or "")
    assert streamed["reasoning_content"] == message.get("reasoning_content", "")
    made: list[list[dict[str, Any]]] = [streamed["calls"], message.get("tool_calls", [])]
    bare = [[{key: one[key] for key in one if key != "id"} for one in calls]
            for calls in made]  # fmt: skip
    assert bare[0] == bare[1]
    assert events[-2]["choices"][0]["finish_reason"] == choice["finish_reason"]
    expected = "length" if "max_tokens" in fields else "tool_calls" if bare[0] else "stop"
    assert choice["finish_reason"] == expected
    assert message["content"] is not None or bare[0]


def test_the_whole_answer_with_calls(box: Box) -> None:
    choice = box.chat({"text": TWO}, **TOOLS).json["choices"][0]
    first, second = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert re.fullmatch(r"call_[0-9a-f]{16}", first.pop("id"))
    assert second.pop("id") != first
    assert first == {"type": "function", "function": {"name": "look", "arguments": '{"zip":"02134","limit":5}'}}
    assert second == {"type": "custom", "custom": {"name": "patch", "input": 'a\n"b"'}}


def test_calls_in_a_thought_that_never_closed(box: Box) -> None:
    message = box.chat({"text": "I look: " + call("look", zip="1")}, enable_thinking=True, **TOOLS).json["choices"][0][
        "message"
    ]
    assert message["tool_calls"][0]["function"]["name"] == "look"
    assert message["content"] is None
    assert message["reasoning_content"].startswith("I look:")


def test_declarations_reach_the_prompt_and_hosted_tools_do_not(box: Box) -> None:
    def length(**fields: Any) -> int:
        prompt: int = box.chat({"text": "x"}, **fields).json["usage"]["prompt_tokens"]
        return prompt

    alone, declared = length(), length(**TOOLS)
    assert declared > alone + 50
    assert length(**TOOLS, tool_choice="none") == declared
    assert length(tools=[{"type": "web_search_preview", "any": 1}]) == alone


def test_refusals_come_before_capacity(box: Box) -> None:
    strict = box.chat(tools=[{"type": "function", "function": LOOK["function"] | {"strict": True}}])
    assert (strict.error["code"], strict.error["param"]) == (
        "unsupported_json_schema", "tools[0].function.parameters",
    )  # fmt: skip
    name = box.chat(tools=[LOOK, {"type": "custom", "custom": {"name": "a b"}}])
    assert (name.error["code"], name.error["param"]) == ("invalid_tool_name", "tools[1].custom.name")


def test_the_openai_client_calls_tools(box: Box) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{box.port}/v1", api_key="none", max_retries=0) as client:
        messages: Any = chat_body({"text": "Let me.\n\n" + TWO})["messages"]
        off = {"enable_thinking": False}
        tools: Any = TOOLS["tools"]
        whole = client.chat.completions.create(model="nano", messages=messages, tools=tools, extra_body=off)
        assert whole.choices[0].finish_reason == "tool_calls"
        message: Any = whole.choices[0].message
        first, second = message.tool_calls
        assert json.loads(first.function.arguments) == {"zip": "02134", "limit": 5}
        assert second.custom.input == 'a\n"b"'
        one: Any = chat_body({"text": call("look", zip="02134")})["messages"]
        with client.chat.completions.stream(model="nano", messages=one, tools=tools[:1], extra_body=off) as stream:
            final: Any = stream.get_final_completion()
        assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"zip": "02134"}
        results: list[Any] = [
            {"role": "tool", "tool_call_id": second.id, "content": "two"},
            {"role": "tool", "tool_call_id": first.id, "content": json.dumps({"script": {"text": "done"}})},
        ]
        last = client.chat.completions.create(
            model="nano", messages=[*messages, message, *results], tools=tools, extra_body=off
        )  # fmt: skip
        assert last.choices[0].message.content == "done"
