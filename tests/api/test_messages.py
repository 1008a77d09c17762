"""Anthropic Messages against the scripted engine: whole and streamed (spec/serving.md §9; cases A5, A6, A7, Q1, Q8)."""

import http.client
import json
import time
from typing import Any

import pytest

from tests.api.anthropic_box import ask, body, frames, message_of, same_answer
from tests.api.box import Box
from tests.api.nano import frontend

ON = {"thinking": {"type": "adaptive"}}
CALL = (
    "<tool_call>\n<function=write>\n<parameter=path>\na.txt\n</parameter>\n"
    "<parameter=lines>\n3\n</parameter>\n</function>\n</tool_call>"
)
WRITE = {
    "name": "write",
    "description": "Write a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}},
}
TOOLS = {"tools": [WRITE]}


def text(value: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": value}]


@pytest.mark.parametrize(
    ("script", "fields", "reason", "shown"),
    [
        ({"text": "plain words"}, {}, "end_turn", "plain words"),
        ({"text": "你好 🌍 é"}, {}, "end_turn", "你好 🌍 é"),
        ({"text": "你好 🌍 é", "each": 3}, {}, "end_turn", "你好 🌍 é"),
        ({"text": "a thought</think>\n\nan answer"}, ON, "end_turn", "an answer"),
        ({"text": "a thought then the model stops"}, ON, "end_turn", None),
        ({"text": "an answer with </think> in it"}, {}, "end_turn", "an answer with </think> in it"),
        ({"text": "one two STOP three"}, {"stop_sequences": ["zzz", "STOP"]}, "stop_sequence", "one two "),
        ({"text": "word " * 40}, {"max_tokens": 3}, "max_tokens", "word word word"[: len("word word word")]),
        ({"text": "", "ids": []}, {}, "end_turn", None),
        ({"text": "I write.\n\n" + CALL}, TOOLS, "tool_use", "I write."),
        ({"text": "hm</think>\n\n" + CALL}, TOOLS | ON, "tool_use", None),
        ({"text": CALL + "\n" + CALL}, TOOLS, "tool_use", None),
        ({"text": "hm\n" + CALL}, TOOLS | ON, "tool_use", None),  # inside an unclosed thought (A2)
    ],
)
def test_stream_and_whole_say_the_same(
    box: Box, script: dict[str, Any], fields: dict[str, Any], reason: str, shown: str | None
) -> None:
    whole = ask(box, script, **fields)
    assert whole.status == 200, whole.body
    streamed = ask(box, script, stream=True, **fields)
    assert streamed.headers["Content-Type"] == "text/event-stream"
    assert (streamed.headers["Cache-Control"], streamed.headers["X-Accel-Buffering"]) == ("no-cache", "no")
    message = message_of(frames(streamed))
    same_answer(whole.json, message)
    assert (message["stop_reason"], message["model"]) == (reason, "any-label")
    said = [block["text"] for block in message["content"] if block["type"] == "text"]
    if shown is None:
        assert said == []
    else:
        assert said[0].startswith(shown)


def test_the_whole_message(box: Box) -> None:
    message = ask(box, {"text": "hm</think>\n\nyes\n\n" + CALL}, **ON, **TOOLS).json
    thought, said, call = message["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "hm")
    assert thought["signature"]
    assert said == {"type": "text", "text": "yes"}
    assert (call["name"], call["input"]) == ("write", {"path": "a.txt", "lines": 3})
    assert list(call["input"]) == ["path", "lines"]
    assert (message["type"], message["role"], message["stop_sequence"]) == ("message", "assistant", None)
    usage = message["usage"]
    assert set(usage) == {
        "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation", "output_tokens",
        "output_tokens_details", "server_tool_use", "service_tier", "inference_geo",
    }  # fmt: skip
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (0, None)
    assert 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"]
    assert usage["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 0}


def test_a_cut_thought_is_a_thought_in_both_modes(box: Box) -> None:
    for stream in (False, True):
        reply = ask(box, {"text": "word " * 40}, max_tokens=20, stream=stream, **ON)
        message = message_of(frames(reply)) if stream else reply.json
        assert [block["type"] for block in message["content"]] == ["thinking"]
        assert message["content"][0]["thinking"].startswith("word word")
        assert message["stop_reason"] == "max_tokens"


def test_a_cut_call_is_none_and_the_limit_wins(box: Box) -> None:
    whole = ask(box, {"text": CALL, "finish": "length"}, **TOOLS).json
    assert whole["stop_reason"] == "max_tokens"  # though the call is complete
    assert [block["type"] for block in whole["content"]] == ["tool_use"]
    cut = ask(box, {"text": CALL + "\n<tool_call>\n<function=write>\n<parameter=path>\nb", "finish": "length"}, **TOOLS)
    assert cut.json["stop_reason"] == "max_tokens"


def test_the_context_is_a_limit_of_its_own(box: Box) -> None:
    long = {"text": "word " * 1100, "each": 64}
    for fields in ({"max_tokens": 100_000}, {"max_tokens": None}):  # both leave it to the context
        assert ask(box, long, **fields).json["stop_reason"] == "model_context_window_exceeded"


def test_what_reaches_the_engine(box: Box) -> None:
    seen = len(box.seen("submit"))
    ask(box, {"text": "x"}, temperature=0.5, top_k=3, stop_sequences=["a", "é"], max_tokens=9)
    ask(box, {"text": "x"}, **ON)
    ask(box, {"text": "x"}, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1025)
    first, second, third = box.seen("submit")[seen:]
    assert (first["thinking"], second["thinking"], third["thinking"][1]) == (None, None, 1024)
    assert (first["temperature"], first["top_k"], first["stops"], first["max_tokens"]) == (0.5, 3, ["a", "é"], 9)
    assert first["presence_penalty"] == 1.5  # not thinking
    assert second["presence_penalty"] == 0


def test_the_last_assistant_turn_is_continued(box: Box) -> None:
    history = [*body({"text": "world"})["messages"], {"role": "assistant", "content": "Hello, "}]
    whole = ask(box, messages=history).json
    assert whole["content"] == text("world")
    same_answer(whole, message_of(frames(ask(box, messages=history, stream=True))))
    unspecified = {"model": "x", "messages": history}  # thinks by default, but not here
    assert box.request("POST", "/v1/messages", unspecified).json["content"] == text("world")
    counted = box.request("POST", "/v1/messages/count_tokens", unspecified).json["input_tokens"]
    assert counted == whole["usage"]["input_tokens"]
    refused = ask(box, messages=history, **ON)
    assert (refused.status, refused.json["error"]["type"]) == (400, "invalid_request_error")
    assert "without thinking" in refused.json["error"]["message"]


def count(box: Box, **fields: Any) -> int:
    reply = box.request("POST", "/v1/messages/count_tokens", {"model": "m"} | fields)
    assert reply.status == 200, reply.body
    assert set(reply.json) == {"input_tokens"}
    number: int = reply.json["input_tokens"]
    return number


def test_counting_is_what_a_message_costs(box: Box) -> None:
    request = body({"text": "ok"}, **TOOLS, system="Be brief.") | {"thinking": {"type": "disabled"}}
    counted = box.request("POST", "/v1/messages/count_tokens", request | {"temperature": "ignored", "stream": 7}).json
    assert counted["input_tokens"] == ask(box, **request).json["usage"]["input_tokens"]
    many = [{"role": "user", "content": "word " * 4000}]
    assert count(box, messages=many) > 2048  # more than fits, which is what a client wants to know
    refused = ask(box, messages=many)
    assert refused.status == 400
    assert "2048" in refused.json["error"]["message"]


def test_the_billing_line_changes_nothing(box: Box) -> None:
    def prompt(system: Any) -> int:
        return count(box, messages=[{"role": "user", "content": "hi"}], system=system)

    line = "x-anthropic-billing-header: cc_version=1; cch=%s;"
    rest = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    plain = prompt([rest])
    assert prompt([{"type": "text", "text": line % "0a1b2"}, rest]) == plain
    assert prompt([{"type": "text", "text": line % "a much longer one"}, rest]) == plain
    assert prompt((line % "x") + "\nBe brief.") == plain
    assert prompt([{"type": "text", "text": line % "x"}]) == count(box, messages=[{"role": "user", "content": "hi"}])
    assert prompt([rest, {"type": "text", "text": line % "x"}]) > plain  # only at the head
    assert box.api_log.read_text().count("billing_line_dropped") == 1


def test_a_dead_client_frees_the_lane(box: Box) -> None:
    for stream in (True, False):
        cancels = len(box.seen("cancel"))
        admitted = len(box.seen("admitted"))
        connection = http.client.HTTPConnection("127.0.0.1", box.port, timeout=10)
        request = body({"text": "word " * 400, "delay": 0.02}, stream=stream, max_tokens=1500)
        connection.request("POST", "/v1/messages", json.dumps(request))
        box.await_seen("admitted", admitted + 1)
        gone = time.monotonic()
        assert connection.sock is not None
        connection.sock.close()
        connection.close()
        assert box.await_seen("cancel", cancels + 1)["time"] - gone < 1


def test_signs_of_life_while_queued_and_prefilling(box: Box) -> None:
    reply = ask(box, {"text": "ok", "queue": 0.5, "prefill": 0.1}, stream=True)
    head = reply.body.split(b"event: message_start")[0]
    assert head.count(b": keep-alive\n\n") >= 1
    assert message_of(frames(reply))["content"] == text("ok")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("overloaded", 529, "overloaded_error"),
        ("queue_timeout", 504, "timeout_error"),
        ("context_length", 400, "invalid_request_error"),
        ("unavailable", 503, "api_error"),
        ("invalid", 400, "invalid_request_error"),
    ],
)
def test_errors_in_anthropics_shape(box: Box, code: str, status: int, kind: str) -> None:
    whole = ask(box, {"reject": code})
    assert (whole.status, whole.json["type"], whole.json["error"]["type"]) == (status, "error", kind)
    assert whole.json["request_id"] == whole.headers["request-id"]
    streamed = ask(box, {"reject": code}, stream=True)
    ((name, data),) = frames(streamed)
    assert name == "error"
    assert data == whole.json | {"request_id": streamed.headers["request-id"]}


def test_an_error_in_the_middle_ends_the_stream(box: Box) -> None:
    events = frames(ask(box, {"text": "a b c", "error": "KeyError: secret"}, stream=True))
    assert events[0][0] == "message_start"
    assert events[-1][1]["error"] == {
        "type": "api_error",
        "message": "the server failed on this request; its log says why",
    }
    assert "message_stop" not in [name for name, _ in events]


def test_capacity(box: Box) -> None:
    connections = []
    submits = len(box.seen("submit"))
    for number in range(4):  # two lanes, two waiting places
        connection = http.client.HTTPConnection("127.0.0.1", box.port, timeout=10)
        slow = body({"text": "word " * 50, "delay": 0.05}, stream=True)
        connection.request("POST", "/v1/messages", json.dumps(slow))
        box.await_seen("submit", submits + number + 1)
        connections.append(connection)
    reply = ask(box)
    assert (reply.status, reply.json["error"]["type"]) == (529, "overloaded_error")
    assert reply.headers["Retry-After"] == "2"
    assert box.request("POST", "/v1/messages/count_tokens", body()).status == 200  # takes no place
    load = box.request("GET", "/v1/load").json["requests"]
    assert load["admitted"] == 4
    cancels = len(box.seen("cancel"))
    for connection in connections:
        connection.close()
    box.await_seen("cancel", cancels + 4)


def test_a_long_prompt_renders_in_place(box: Box) -> None:
    """A system turn in the middle stays there, so that a longer conversation begins with the shorter one (A7)."""
    from engine.api.messages_prompt import ask_of
    from engine.api.messages_request import MessagesRequest

    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
        {"role": "system", "content": "a reminder"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "five"},
    ]

    def ids(messages: list[dict[str, Any]]) -> list[int]:
        asked = ask_of(MessagesRequest.model_validate({"model": "m", "system": "head", "messages": messages}))
        return frontend().prepare(asked.messages, enable_thinking=False, add_generation_prompt=False).token_ids

    short, long = ids(turns[:4]), ids(turns)
    assert long[: len(short)] == short
