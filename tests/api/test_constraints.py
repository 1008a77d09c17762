"""Forms of answers from the request to the engine and back (spec/serving.md §6.5, §6.6; spec/cases.md X1)."""

import json
import threading
import time
from typing import Any

import pytest

from tests.api.box import Box, chat_body

THINK = {"enable_thinking": True}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def look(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", **function}}


def sent(box: Box, **fields: Any) -> str | None:
    """The grammar that reached the engine."""
    reply = box.chat({"text": "{}"}, **fields)
    assert reply.status == 200, reply.body
    found: str | None = box.seen("submit")[-1]["constraint"]
    return found


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"response_format": {"type": "json_object"}}, ['%json {"type":"object"']),
        (schema_format(NUMBER), ['"properties":{"n":{"type":"integer"']),
        ({"structured_outputs": {"regex": "^[ab]+$"}}, ["[a-b]+"]),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ["(?:yes|no)"]),
        ({"structured_outputs": {"grammar": 'root ::= "(" root ")" | "x"'}}, ["answer: ("]),
        ({"response_format": {"type": "text"}}, None),
        ({"tools": [look()]}, ["look>", "before[lazy]"]),
        ({"tools": [look()], "tool_choice": "required"}, ["answer: \"<tool_call>\" call"]),
        ({"tools": [look(), {"type": "function", "function": {"name": "other"}}],
          "tool_choice": {"type": "function", "function": {"name": "other"}}}, ["other>"]),
        ({"tools": [look(strict=True, parameters=NUMBER)], "tool_constraints": "auto"}, ["<parameter=n>"]),
        ({"tools": [look()], "parallel_tool_calls": False, "tool_constraints": "auto"}, ["look>"]),
        ({"tools": [look()], "tool_constraints": "auto"}, None),
        ({"tools": [look()], "stop": "x"}, None),
        ({"tools": [look()], "ignore_eos": True}, None),
        ({"tools": [look()], "tool_choice": "none"}, None),
        ({"tools": [look()], **schema_format(NUMBER)}, ["content | ", "look>"]),
        ({"tools": [look()], "tool_choice": "none", "structured_outputs": {"regex": "a"}}, ["T0: /(?:a)/"]),
    ],
)  # fmt: skip
def test_what_reaches_the_engine(box: Box, fields: dict[str, Any], words: list[str] | None) -> None:
    grammar = sent(box, **fields)
    if words is None:
        assert grammar is None
    else:
        assert grammar is not None
        assert all(word in grammar for word in words), grammar
        if fields.get("tool_choice") and "other" in json.dumps(fields):
            assert "look>" not in grammar


def test_after_a_thought(box: Box) -> None:
    """The blank line before the answer is the model's habit where it may be dropped, and missing where it may not."""
    assert "BLANK" in (sent(box, **THINK, **schema_format(NUMBER)) or "")
    thinking = box.seen("submit")[-1]["thinking"]
    assert thinking[:2] == ["</think>", None]
    exact = {"structured_outputs": {"regex": "\\s?a"}, "thinking_budget": 5} | THINK
    assert "BLANK" not in (sent(box, **exact) or "")
    assert box.seen("submit")[-1]["thinking"][2].endswith("</think>")
    answer = box.chat({"text": "hm</think>\na"}, **exact).json
    assert answer["choices"][0]["message"]["content"] == "\na"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        (schema_format({"foo": "bar"}), "unsupported_json_schema", "/foo"),
        (schema_format({"properties": {"a/b": {"foo": "bar"}}}), "unsupported_json_schema", "/properties/a~1b/foo"),
        (schema_format({"type": "string", "format": "date"}), "unsupported_json_schema", "/format"),
        (schema_format({"type": "text"}), "invalid_json_schema", "/type"),
        (schema_format({"type": "string", "pattern": "foo**"}), "invalid_regex", "/pattern"),
        (schema_format({"allOf": [{"type": "string"}, {"type": "null"}]}), "unsatisfiable_json_schema", ""),
        (schema_format({"oneOf": [{"type": "string"}, {"minLength": 3}]}), "unsupported_json_schema", "/oneOf"),
        (schema_format({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}),
         "unsatisfiable_json_schema", ""),
        (schema_format({"$ref": "https://example.org/x"}), "unsupported_json_schema", "/$ref"),
        (schema_format({"properties": {f"p{i}": {"type": "string"} for i in range(10_000)}}),
         "unsupported_json_schema", "/properties"),
    ],
)  # fmt: skip
def test_refused_schemas(box: Box, fields: dict[str, Any], code: str, param: str) -> None:
    reply = box.chat({"text": "x"}, stream=True, **fields)
    assert (reply.status, reply.error["code"]) == (400, code), reply.body
    assert reply.error["param"] == "response_format.json_schema.schema" + param


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"structured_outputs": {"regex": "foo**"}}, "invalid_regex", "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "invalid_regex", "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "[^\\s\\S]"}}, "invalid_regex", "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "invalid_choice", "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "invalid_grammar", "structured_outputs.grammar"),
        ({"structured_outputs": {"regex": "a"}, "stop": "x"}, "parameter_not_supported", "stop"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "parameter_not_supported", "ignore_eos"),
        ({"tools": [look()], "stop": "x", "tool_constraints": "basic"}, "parameter_not_supported", "stop"),
        ({"tools": [look()], "stop": "x", "tool_choice": "required"}, "parameter_not_supported", "stop"),
        ({"tools": [look()], "structured_outputs": {"regex": "a"}}, "parameter_not_supported",
         "structured_outputs.regex"),
        ({"tools": [look(strict=True, parameters=NUMBER | {"properties": {"n": {"type": ["string", "null"]}}})]},
         "unsupported_json_schema", "tools[0].function.parameters/properties/n"),
    ],
)  # fmt: skip
def test_refused_forms(box: Box, fields: dict[str, Any], code: str, param: str) -> None:
    reply = box.chat({"text": "x"}, **fields)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, code, param), reply.body


@pytest.mark.parametrize(
    "regex", ["^(|.*)$", "(a+)+$", "(a+)+" * 2000 + "$", "(((a{1,90}){1,90}){1,90})", "[ab]*a[ab]{2000}"]
)
def test_expressions_that_ruin_others_do_no_harm(box: Box, regex: str) -> None:
    began = time.monotonic()
    reply = box.chat({"text": "aa"}, structured_outputs={"regex": regex})
    assert reply.status == 200 or reply.error["code"] == "invalid_regex"
    assert time.monotonic() - began < 10


def test_a_schema_of_depth_5000(box: Box) -> None:
    body = json.dumps(chat_body(None, **schema_format("HERE"))).encode()
    deep = b'{"items":' * 5000 + b"{}" + b"}" * 5000
    reply = box.request("POST", "/v1/chat/completions", body.replace(b'"HERE"', deep))
    assert reply.status == 400


def test_a_bomb_is_refused_in_time_while_others_are_served(box: Box) -> None:
    inner = {"type": "object", "properties": {f"q{i}": {"type": "string"} for i in range(7)}}
    bomb = {"type": "object", "properties": {f"p{i}": inner for i in range(2040)}}
    replies: list[Any] = []
    asking = threading.Thread(target=lambda: replies.append(box.chat({"text": "x"}, **schema_format(bomb))))
    began = time.monotonic()
    asking.start()
    waits = []
    while asking.is_alive():
        started = time.monotonic()
        assert box.request("GET", "/health").status == 200
        waits.append(time.monotonic() - started)
        time.sleep(0.02)
    asking.join()
    assert time.monotonic() - began < 15
    assert (replies[0].status, replies[0].error["code"]) == (400, "unsupported_json_schema")
    assert "make it simpler" in replies[0].error["message"]
    assert sorted(waits)[len(waits) // 2] < 0.2  # the machine is shared, so not each of them
    assert sent(box, **schema_format(NUMBER)) is not None  # and the next one is compiled


@pytest.mark.parametrize("usage", [False, True])
def test_the_observation(box: Box, usage: bool) -> None:
    expected = {
        "branch": "content", "complete": True, "terminated": True, "cache": "hit", "mask_positions": 7,
        "mask_upload_bytes": 7168, "timings_seconds": {"prepare": 0.0, "mask": 0.25, "matcher": 0.0},
    }  # fmt: skip
    fields = {"response_format": {"type": "json_object"}}
    assert box.chat({"text": "{}"}, **fields).json["constraint"] == expected
    metrics = box.request("GET", "/metrics").body.decode()
    for series in ('requests_total{outcome="terminated"}', 'cache_total{result="hit"}', "mask_positions_total"):
        (line,) = [one for one in metrics.splitlines() if one.startswith(f"ninfer_constraint_{series}")]
        assert float(line.split()[-1]) >= 1
    events = box.chat({"text": "{}"}, stream=True, stream_options={"include_usage": usage}, **fields).events
    assert [event for event in events[:-1] if "constraint" in event] == [events[-2]]
    assert events[-2]["constraint"] == expected
    assert "constraint" not in box.chat({"text": "{}"}).json
    cut = box.chat({"text": "{}", "finish": "length"}, **fields).json
    assert (cut["constraint"]["complete"], cut["constraint"]["terminated"]) == (True, False)
    thought = box.chat({"text": "so", "finish": "length"}, **fields, **THINK).json["constraint"]
    assert thought["branch"] == "undecided"
    call = "<tool_call>\n<function=look>\n</function>\n</tool_call>"
    assert box.chat({"text": call}, tools=[look()]).json["constraint"]["branch"] == "tools"


def test_an_answer_that_cannot_go_on(box: Box) -> None:
    fields = {"response_format": {"type": "json_object"}}
    dead = box.chat({"text": "x", "error": "no token fits", "error_code": "constraint_dead_end"}, **fields)
    assert (dead.status, dead.error["code"]) == (400, "constraint_dead_end")
    failed = box.chat({"text": "x", "error": "it died", "error_code": "constraint_failed"}, **fields)
    assert (failed.status, failed.error["code"]) == (500, "constraint_failed")
    assert "it died" in failed.error["message"]


def test_the_other_protocols(box: Box) -> None:
    """Where each says the form, and where it reports on it."""
    script = json.dumps({"script": {"text": "{}"}})
    flat = {"type": "json_schema", "name": "answer", "schema": NUMBER, "strict": True}
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    request: dict[str, Any] = {"model": "nano", "input": script, "text": {"format": flat}} | off
    response = box.request("POST", "/v1/responses", request).json
    assert response["text"]["format"] == flat
    assert response["constraint"]["complete"]
    assert '"n"' in box.seen("submit")[-1]["constraint"]
    request = {
        "model": "nano", "max_tokens": 50, "messages": [{"role": "user", "content": script}],
        "output_config": {"format": {"type": "json_schema", "schema": NUMBER}}, "thinking": {"type": "disabled"},
    }  # fmt: skip
    message = box.request("POST", "/v1/messages", request).json
    assert message["constraint"]["complete"]
    events = box.request("POST", "/v1/messages", request | {"stream": True}).body.decode().split("\n\n")
    (delta,) = [json.loads(event.split("data: ")[1]) for event in events if "event: message_delta" in event]
    assert delta["constraint"]["complete"]
    bad = request | {"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}
    assert "output_config.format.schema/type" in box.request("POST", "/v1/messages", bad).error["message"]
    bad = {"model": "nano", "input": script, "structured_outputs": {"regex": "a("}}
    refused = box.request("POST", "/v1/responses", bad)
    assert (refused.error["code"], refused.error["param"]) == ("invalid_regex", "structured_outputs.regex")
    forced: dict[str, Any] = {
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "look"},
    }  # fmt: skip
    del request["output_config"]
    assert box.request("POST", "/v1/messages", request | forced).status == 200
    assert 'answer: "<tool_call>" call' in box.seen("submit")[-1]["constraint"]
    prefilled = request | {"messages": [*request["messages"], {"role": "assistant", "content": "{"}]}
    prefilled["output_config"] = {"format": {"type": "json_object"}}
    assert "cannot be held to a form" in box.request("POST", "/v1/messages", prefilled).error["message"]
