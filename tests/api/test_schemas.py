"""Every field of a chat request: types, ranges, and refusals with their codes (spec/serving.md §4.4, §7.1; X4)."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.api.errors import ApiError, from_validation
from engine.api.schemas import ChatRequest, messages_for_template

ABSURD = [
    "-1",
    "0",
    "2147483648",
    "9223372036854775808",
    "1e308",
    "-1e308",
    "NaN",
    "Infinity",
    "true",
    '"5"',
    "[]",
    "{}",
]
FITTING = {
    "max_tokens": {"0"},
    "max_completion_tokens": {"0"},
    "temperature": {"0"},
    "top_p": {"0"},
    "min_p": {"0"},
    "top_k": {"0"},
    "presence_penalty": {"-1", "0"},
    "frequency_penalty": {"-1", "0"},
    "seed": {"-1", "0", "2147483648"},
    "n": set[str](),
    "top_logprobs": {"0"},
    "thinking_budget": {"2147483648"},
    "repetition_penalty": set[str](),
}


def parse(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
    return parse_bytes(json.dumps(body).encode())


def parse_bytes(body: bytes) -> ChatRequest:
    try:
        made = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error, body) from error
    assert made.toolset.tools is not None  # refuses what the schema alone cannot
    assert made.form is None or made.form.field
    return made


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("field", FITTING)
@pytest.mark.parametrize("number", ABSURD)
def test_absurd_numbers_are_refused_by_name(field: str, number: str) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"%s":%s}' % (field.encode(), number.encode())
    if number in FITTING[field]:
        assert getattr(parse_bytes(body), field) == float(number)
        return
    with pytest.raises(ApiError) as caught:
        parse_bytes(body)
    assert (caught.value.status, caught.value.param) == (400, field)
    assert field in caught.value.message


def tool(name: str, **members: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name} | members}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2), "top_p": (0, 1), "min_p": (0, 1), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2),
}  # fmt: skip


@given(st.sampled_from(sorted(RANGES)), st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=60, deadline=None)
def test_real_numbers_are_accepted_exactly_in_their_range(field: str, number: float) -> None:
    low, high = RANGES[field]
    if low <= number <= high:
        assert getattr(parse(**{field: number}), field) == number
    else:
        assert refused(**{field: number}).param == field


WHOLE = {"max_tokens": (0, 2**31 - 1), "top_k": (0, 20), "seed": (-(2**63), 2**63 - 1)}


@given(st.sampled_from(sorted(WHOLE)), st.integers(-(2**70), 2**70))
@settings(max_examples=60, deadline=None)
def test_whole_numbers_are_accepted_exactly_in_their_range(field: str, number: int) -> None:
    low, high = WHOLE[field]
    if low <= number <= high:
        assert getattr(parse(**{field: number}), field) == number
    else:
        assert refused(**{field: number}).param == field


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(ChatRequest.model_fields)), json_values, max_size=4))
@settings(max_examples=60, deadline=None)
def test_any_json_is_taken_or_refused_by_name(fields: dict[str, Any]) -> None:
    error: ApiError | None = None
    try:
        messages_for_template(parse(**fields).messages)
    except ApiError as caught:
        error = caught
    if error is not None:
        assert error.status == 400
        assert error.code
        assert re.split(r"[.[]", error.param or "")[0] in fields


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"n": 2}, "n_not_supported"),
        ({"n": 1_000_000}, "n_not_supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias_not_supported"),
        ({"logprobs": True}, "logprobs_not_supported"),
        ({"top_logprobs": 3}, "logprobs_not_supported"),
        ({"tools": "f"}, "invalid_type"),
        ({"tools": ["f"]}, "invalid_type"),
        ({"tools": [{"type": "function"}]}, "invalid_value"),
        ({"tools": [{"type": "telepathy"}]}, "tool_type_not_supported"),
        ({"tools": [tool("")]}, "invalid_tool_name"),
        ({"tools": [tool("a b")]}, "invalid_tool_name"),
        ({"tools": [tool("f" * 65)]}, "invalid_tool_name"),
        ({"tools": [tool("f"), {"type": "custom", "custom": {"name": "f"}}]}, "duplicate_tool_name"),
        ({"tools": [tool("f", parameters={"type": "array"})]}, "invalid_json_schema"),
        ({"tools": [tool("f", strict=True, parameters={"type": "object"})]}, "unsupported_json_schema"),
        ({"tool_choice": "required"}, "invalid_tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "invalid_tool_choice"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "g"}}, "tools": [tool("f")]}, "invalid_tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice_not_supported"),
        ({"tool_choice": "sometimes"}, "invalid_value"),
        ({"tool_choice": 5}, "invalid_type"),
        ({"tool_choice": allowed("auto", "g"), "tools": [tool("f")]}, "invalid_tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "invalid_tool_choice"),
        ({"functions": [{"name": "f"}]}, "legacy_tools_not_supported"),
        ({"function_call": {"name": "f"}}, "legacy_tools_not_supported"),
        ({"response_format": {"type": "xml"}}, "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "invalid_value"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "invalid_value"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}}, "invalid_type"),
        ({"structured_outputs": {}}, "invalid_value"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "invalid_value"),
        ({"structured_outputs": {"json": {}}}, "unknown_parameter"),
        ({"structured_outputs": {"choice": "a"}}, "invalid_type"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "invalid_value"),
        ({"guided_json": {}}, "constrained_decoding_not_supported"),
        ({"grammar": "root ::= a"}, "constrained_decoding_not_supported"),
        ({"thinking_budget": 0}, "invalid_value"),
        ({"thinking_budget": "16"}, "invalid_type"),
        ({"repetition_penalty": 1.1}, "repetition_penalty_not_supported"),
        ({"modalities": ["text", "audio"]}, "modality_not_supported"),
        ({"verbosity": "low"}, "verbosity_not_supported"),
        ({"store": True}, "store_not_supported"),
        ({"web_search_options": {}}, "web_search_not_supported"),
        ({"moderation": {}}, "moderation_not_supported"),
        ({"mm_processor_kwargs": {"fps": 1}}, "mm_processor_kwargs_not_supported"),
        ({"graft": "law"}, "unknown_graft"),
        ({"reasoning_effort": "huge"}, "invalid_value"),
        ({"stop": ["a"] * 5}, "invalid_value"),
        ({"stop": [""]}, "invalid_value"),
        ({"stop": 5}, "invalid_type"),
        ({"messages": []}, "invalid_value"),
        ({"messages": "hi"}, "invalid_type"),
        ({"safety_identifier": "x" * 65}, "invalid_value"),
        ({"stream": "yes"}, "invalid_type"),
    ],
)
def test_refusals_have_their_code_and_name_the_field(fields: dict[str, Any], code: str) -> None:
    error = refused(**fields)
    assert error.code == code
    assert error.param is not None
    assert error.param.startswith(next(iter(fields)))


NEUTRAL: dict[str, Any] = {
    "n": 1, "logit_bias": {"5": 0}, "logprobs": False, "top_logprobs": 0, "tools": [], "tool_choice": "auto",
    "functions": [], "function_call": "none", "response_format": {"type": "text"}, "structured_outputs": None,
    "repetition_penalty": 1.0, "modalities": ["text"], "verbosity": "medium", "store": False, "moderation": None,
    "mm_processor_kwargs": {"fps": None}, "graft": "", "parallel_tool_calls": False, "metadata": {"a": "b"},
    "service_tier": "auto", "user": "u", "prediction": {}, "a_field_nobody_knows": [1], "stop": None,
}  # fmt: skip


def test_neutral_values_and_unknown_fields_are_accepted() -> None:
    assert parse(**NEUTRAL).n == 1
    assert parse(tools=[{"type": "web_search_preview"}]).tools


def test_declared_tools() -> None:
    schema = {"type": "object", "properties": {"zebra": {"type": "string"}, "apple": {"type": "integer"}}}
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a+/"}}
    request = parse(
        tools=[
            tool("look", description="see", parameters=schema, strict=False),
            {"type": "web_search_preview", "any": "thing"},
            {"type": "custom", "custom": {"name": "write", "description": "put", "format": grammar}},
            tool("stay"),
        ],
        tool_choice=allowed("auto", "look", "write"),
        parallel_tool_calls=False,
    )
    look, write, stay = request.toolset.declarations()
    function = {"name": "look", "parameters": schema, "strict": False, "description": "see"}
    assert json.dumps(look) == json.dumps({"type": "function", "function": function})  # members in their order
    assert write["function"]["description"] == "put\n\nThe input follows this lark grammar:\nstart: /a+/"
    assert stay["function"]["parameters"] == {"type": "object", "properties": {}}
    choice = request.toolset.choice
    assert (choice.minimum, choice.maximum, choice.names) == (0, 1, frozenset({"look", "write"}))
    assert parse(tools=[tool("f")], tool_choice="none").toolset.reader() is None
    assert parse(tools=[{"type": "mcp_server"}]).toolset.declarations() == []


def test_results_are_put_in_the_order_of_their_calls() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def result(name: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": name, "content": name}

    turns = [
        result("early"),
        {"role": "assistant", "tool_calls": [call("a"), call("b"), call("c")]},
        result("b"), result("a"),
        {"role": "user", "content": "on"},
    ]  # fmt: skip
    made = messages_for_template(parse(messages=turns).messages)
    order = [one["tool_call_id"] for one in made if one["role"] == "tool"]
    assert order == ["early", "a", "b"]
    assert made[-1]["content"] == "on"
    for stray in (result("stray"), result("a")):
        with pytest.raises(ApiError) as caught:
            messages_for_template(parse(messages=[*turns[1:4], stray]).messages)
        assert (caught.value.code, (caught.value.param or "")[:11]) == ("invalid_tool_history", "messages[3]")


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ({"role": "wizard", "content": "x"}, "unsupported_role", "messages[0].role"),
        ({"content": "x"}, "invalid_value", "messages[0].role"),
        ({"role": "user"}, "invalid_value", "messages[0]"),
        ({"role": "user", "content": 5}, "invalid_type", "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, "vision_disabled", None),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "audio_inputs_not_supported", None),
        ({"role": "user", "content": [{"type": "file"}]}, "file_inputs_not_supported", None),
        ({"role": "user", "content": [{"type": "smell"}]}, "modality_not_supported", None),
        ({"role": "user", "content": [{"type": "text"}]}, "invalid_value", "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "modality_not_supported", None),
        ({"role": "user", "content": "x", "name": "bob"}, "message_name_not_supported", "messages[0]"),
        ({"role": "tool", "content": "x"}, "invalid_tool_history", "messages[0]"),
        ({"role": "function", "content": "x"}, "invalid_tool_history", "messages[0]"),
        ({"role": "assistant", "audio": {"id": "a"}}, "assistant_history_not_supported", "messages[0]"),
        ({"role": "assistant", "reasoning": "a", "reasoning_content": "b"}, "invalid_assistant_history", None),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "[1]"}}]},
            "invalid_tool_history",
            "messages[0].tool_calls[0].function.arguments",
        ),
        ("hi", "invalid_type", "messages[0]"),
    ],
)
def test_bad_messages(message: Any, code: str, param: str | None) -> None:
    error = refused(messages=[message])
    assert error.code == code
    assert param is None or error.param == param


def test_history_reaches_the_template_whole_and_in_order() -> None:
    arguments = '{"zebra": 1, "apple": {"y": 1, "x": 2}}'
    request = parse(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": ""},
            {"role": "assistant", "content": None, "reasoning": "hm",
             "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}},
                            {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "raw"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "r", "name": "ignored"},
            {"role": "assistant", "content": "x", "function_call": {"name": "h", "arguments": ""}},
            {"role": "function", "name": "h", "content": "s"},
        ]
    )  # fmt: skip
    system, user, calls, result, legacy, legacy_result = messages_for_template(request.messages)
    assert [part["text"] for part in system["content"]] == ["a", "b"]
    assert user == {"role": "user", "content": ""}
    assert (calls["content"], calls["reasoning_content"]) == ("", "hm")
    function = calls["tool_calls"][0]["function"]
    assert (function["name"], json.dumps(function["arguments"])) == ("f", arguments)
    assert calls["tool_calls"][1]["function"] == {"name": "g", "arguments": {"input": "raw"}}
    assert result == {"role": "tool", "content": "r", "tool_call_id": "c1"}
    assert legacy["tool_calls"][0]["function"]["name"] == legacy_result["tool_call_id"] == "h"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b'{"model":"m",}', b"[" * 100_000, b"9" * 10_000, b'{"a":"\\ud800"}']
)
def test_what_is_not_json_is_said_to_be_so(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_bytes(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_a_body_that_is_no_object() -> None:
    with pytest.raises(ApiError) as caught:
        parse_bytes(b"[1]")
    assert (caught.value.status, caught.value.code) == (400, "invalid_type")
