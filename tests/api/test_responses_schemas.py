"""Every field, item and tool of a Responses request: accepted, or refused with its code (spec/serving.md §8.1)."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.api.errors import ApiError, from_validation
from engine.api.responses.conversation import messages
from engine.api.responses.items import OURS, seal, unseal, wire_items
from engine.api.responses.schemas import CreateRequest, InputTokensRequest, PromptRequest
from engine.api.responses.tools import Declared, declare


def parse(model: type[PromptRequest] = CreateRequest, /, **fields: Any) -> tuple[PromptRequest, Declared]:
    """Everything that is checked before a prompt is made."""
    data = json.dumps({"model": "m", "input": "hi"} | fields).encode()
    try:
        made = model.model_validate_json(data)
    except ValidationError as error:
        raise from_validation(error, data) from error
    return made, declare(made.tools or (), made.choice, parallel=made.parallel_tool_calls is not False)


def converse(items: list[Any], earlier: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    request, _ = parse(input=items)
    return messages(earlier or [], wire_items(request.input))


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value


def function(name: str = "f", **members: Any) -> dict[str, Any]:
    return {"type": "function", "name": name} | members


def space(name: str, *tools: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": list(tools)} | members


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"a_field_nobody_knows": 1}, "unknown_parameter"),
        ({"messages": []}, "unknown_parameter"),
        ({"stop": "x"}, "unknown_parameter"),
        ({"top_k": 5}, "unknown_parameter"),
        ({"seed": 5}, "unknown_parameter"),
        ({"presence_penalty": 0}, "unknown_parameter"),
        ({"tool_constraints": "auto"}, "unknown_parameter"),
        ({"enable_thinking": False}, "unknown_parameter"),
        ({"model": None}, "invalid_type"),
        ({"input": 5}, "invalid_type"),
        ({"instructions": ["x"]}, "invalid_type"),
        ({"background": True}, "background_not_supported"),
        ({"include": ["message.output_text.logprobs"]}, "include_not_supported"),
        ({"include": ["reasoning.encrypted_content", "x"]}, "include_not_supported"),
        ({"include": "reasoning.encrypted_content"}, "invalid_type"),
        ({"service_tier": "flex"}, "service_tier_not_supported"),
        ({"truncation": "auto"}, "truncation_not_supported"),
        ({"truncation": "some"}, "invalid_value"),
        ({"top_logprobs": 1}, "logprobs_not_supported"),
        ({"top_logprobs": 21}, "invalid_value"),
        ({"reasoning": {"effort": "huge"}}, "invalid_value"),
        ({"reasoning": {"summary": "loud"}}, "invalid_value"),
        ({"reasoning": {"context": "all"}}, "reasoning_option_not_supported"),
        ({"reasoning": {"mode": "x"}}, "reasoning_option_not_supported"),
        ({"reasoning": {"other": 1}}, "unknown_parameter"),
        ({"text": {"format": {"type": "xml"}}}, "invalid_value"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "invalid_value"),
        ({"text": {"format": {"type": "poem"}}}, "invalid_value"),
        ({"text": {"verbosity": "high"}}, "verbosity_not_supported"),
        ({"structured_outputs": {}}, "invalid_value"),
        ({"conversation": "conv_1"}, "conversations_not_supported"),
        ({"prompt": {"id": "p"}}, "prompt_templates_not_supported"),
        ({"context_management": []}, "context_management_not_supported"),
        ({"moderation": {}}, "moderation_not_supported"),
        ({"thinking_budget": 0}, "invalid_value"),
        ({"graft": "law"}, "unknown_graft"),
        ({"metadata": {str(number): "" for number in range(17)}}, "invalid_value"),
        ({"metadata": {"k" * 65: ""}}, "invalid_value"),
        ({"metadata": {"k": "v" * 513}}, "invalid_value"),
        ({"metadata": {"k": 5}}, "invalid_type"),
        ({"client_metadata": "x"}, "invalid_type"),
        ({"prompt_cache_key": ""}, "invalid_value"),
        ({"prompt_cache_retention": "1y"}, "invalid_value"),
        ({"prompt_cache_options": {"ttl": "5m"}}, "invalid_value"),
        ({"safety_identifier": "x" * 65}, "invalid_value"),
        ({"stream": 1}, "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "unknown_parameter"),
        ({"temperature": 2.1}, "invalid_value"),
        ({"tool_choice": {"type": "function", "name": "g"}, "tools": [function()]}, "invalid_tool_choice"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice_not_supported"),
        ({"tool_choice": {"type": "telepathy"}}, "invalid_tool_choice"),
        ({"tool_choice": "maybe"}, "invalid_value"),
        ({"tools": [{"name": "f"}]}, "tool_type_not_supported"),
        ({"tools": [{"type": "telepathy"}]}, "tool_type_not_supported"),
        ({"tools": [function(color="red")]}, "unknown_parameter"),
        ({"tools": [function(strict=True, parameters={"type": "object"})]}, "unsupported_json_schema"),
        ({"tools": [function(defer_loading=True)]}, "deferred_tools_not_supported"),
        ({"tools": [function(output_schema={})]}, "tool_output_schema_not_supported"),
        ({"tools": [function(allowed_callers=["code"])]}, "tool_caller_not_supported"),
        ({"tools": [function("a b")]}, "invalid_tool_name"),
        ({"tools": [function(), function()]}, "duplicate_tool_name"),
        ({"tools": [space("", function())]}, "invalid_tool_name"),
        ({"tools": [space("a", function("b" * 62))]}, "invalid_tool_name"),
        ({"tools": [space("a", function("b")), function("a__b")]}, "duplicate_tool_name"),
        ({"tools": [space("a", {"type": "web_search"})]}, "invalid_value"),
    ],
)  # fmt: skip
def test_refusals_have_their_code_and_name_the_field(fields: dict[str, Any], code: str) -> None:
    error = refused(**fields)
    assert error.code == code
    assert error.param is not None
    assert error.param.startswith(next(iter(fields)))


ABSURD = ["-1", "2147483648", "9223372036854775808", "1e308", "NaN", "true", '"5"', "[]"]


@pytest.mark.parametrize("field", ["max_output_tokens", "temperature", "top_p", "max_tool_calls", "top_logprobs"])
@pytest.mark.parametrize("number", ABSURD)
def test_absurd_numbers_are_refused_by_name(field: str, number: str) -> None:
    data = b'{"model":"m","input":"hi","%s":%s}' % (field.encode(), number.encode())
    with pytest.raises(ValidationError) as caught:
        CreateRequest.model_validate_json(data)
    error = from_validation(caught.value, data)
    assert (error.status, error.param) == (400, field)


def test_neutral_values_are_accepted() -> None:
    request, declared = parse(
        background=False, include=[], service_tier="auto", truncation="disabled", top_logprobs=0, max_tool_calls=3,
        reasoning={"effort": "low", "summary": "auto", "generate_summary": None}, user="u", safety_identifier="s",
        text={"format": {"type": "text"}, "verbosity": "medium"}, structured_outputs=None, conversation=None,
        prompt=None, context_management=None, moderation=None, graft="", metadata={"a": "b"}, stream=False,
        client_metadata={"x": {"y": 1}}, prompt_cache_key="k", prompt_cache_retention="24h", tool_choice=None,
        prompt_cache_options={"mode": "implicit", "ttl": "30m"}, stream_options={"include_obfuscation": False},
        tools=[function(strict=False, defer_loading=False, allowed_callers=["direct"])], store=True,
        max_output_tokens=0,
    )  # fmt: skip
    assert isinstance(request, CreateRequest)
    assert request.kept
    assert not request.sealed
    assert [tool.name for tool in declared.toolset.tools] == ["f"]


@pytest.mark.parametrize("field", ["stream", "store", "max_output_tokens", "temperature", "include", "thinking_budget"])
def test_counting_takes_only_what_decides_the_prompt(field: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(InputTokensRequest, **{field: None})
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", field)


def test_namespaces_are_flattened_and_hosted_tools_dropped() -> None:
    schema = {"type": "object", "properties": {"zebra": {"type": "string"}, "apple": {"type": "string"}}}
    grammar = {"type": "grammar", "syntax": "regex", "definition": "a+"}
    tools = [
        {"type": "web_search", "anything": {"goes": 1}},
        space("mail", function("send", description="put it out", parameters=schema), description="Letters."),
        {"type": "custom", "name": "patch", "description": "edit", "format": grammar},
        function("look"),
    ]
    _, declared = parse(tools=tools, tool_choice="none")
    send, patch, look = declared.toolset.declarations()
    assert send["function"]["name"] == "mail__send"
    assert send["function"]["description"] == "Letters.\n\nput it out"
    assert json.dumps(send["function"]["parameters"]) == json.dumps(schema)
    assert "regex grammar:\na+" in patch["function"]["description"]
    assert look["function"] == {"name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
    assert declared.names == {"mail__send": ("mail", "send"), "patch": (None, "patch"), "look": (None, "look")}
    assert [tool["type"] for tool in declared.wire] == ["namespace", "custom", "function"]
    assert declared.wire[1]["format"] == grammar
    assert declared.toolset.reader() is None
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "function", "name": "send", "namespace": "mail"}, {"type": "web_search"},
    ]}  # fmt: skip
    _, some = parse(tools=tools, tool_choice=allowed, parallel_tool_calls=False)
    assert (some.toolset.choice.names, some.toolset.choice.maximum) == (frozenset({"mail__send"}), 1)


USER = {"role": "user", "content": "q"}


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        ("hi", "invalid_type", "input[1]"),
        ({}, "item_type_not_supported", "input[1]"),
        ({"type": "item_reference", "id": "x"}, "item_type_not_supported", "input[1]"),
        ({"type": "web_search_call", "id": "x"}, "item_type_not_supported", "input[1]"),
        ({"role": "wizard", "content": "x"}, "unsupported_role", "input[1].role"),
        ({"role": "user"}, "invalid_value", "input[1].content"),
        ({"role": "user", "content": []}, "invalid_value", "input[1].content"),
        ({"role": "user", "content": 5}, "invalid_type", "input[1].content"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "invalid_value", "input[1].content[0]"),
        ({"role": "user", "content": [{"type": "output_text", "text": "x"}]}, "modality_not_supported", "input[1]"),
        ({"role": "user", "content": [{"type": "smell"}]}, "modality_not_supported", "input[1].content[0]"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "vision_disabled", None),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}, "file_inputs_not_supported", None),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "audio_inputs_not_supported", None),
        ({"type": "reasoning", "summary": []}, "reasoning_content_not_supported", "input[1]"),
        ({"type": "reasoning", "encrypted_content": "gAAAA"}, "reasoning_content_not_supported", "input[1]"),
        ({"type": "reasoning", "encrypted_content": OURS + "%"}, "reasoning_content_not_supported", "input[1]"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "invalid_value", "input[1].arguments"),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1]"},
            "invalid_tool_history",
            "input[1].arguments",
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "incomplete"},
            "partial_tool_call_not_supported",
            "input[1]",
        ),
        ({"type": "function_call", "call_id": "", "name": "f", "arguments": "{}"}, "invalid_value", "input[1].call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": []}, "invalid_value", "input[1].output"),
        (
            {"type": "function_call_output", "call_id": "c", "output": "x", "status": "in_progress"},
            "partial_tool_result_not_supported",
            "input[1]",
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "x"}]},
            "vision_disabled",
            "input[1].output[0]",
        ),
        ({"type": "function_call_output", "call_id": "c", "output": "x"}, "invalid_tool_history", "input[1]"),
    ],
)
def test_bad_items(item: Any, code: str, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        converse([USER, item])
    assert caught.value.code == code
    assert param is None or caught.value.param == param


def think(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}


def say(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call(identity: str, name: str = "f", **members: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": identity, "name": name, "arguments": '{"z": 1, "a": 2}'} | members


def result(identity: str, output: Any = "r") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": identity, "output": output}


def custom(identity: str) -> dict[str, Any]:
    return {"type": "custom_tool_call", "call_id": identity, "name": "patch", "input": "a\nb"}


def custom_result(identity: str, **members: Any) -> dict[str, Any]:
    return {"type": "custom_tool_call_output", "call_id": identity, "output": "done"} | members


def test_a_conversation_becomes_messages() -> None:
    made = converse(
        [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
            USER,
            think("hm"), think(" hm"), say("Let me"), say(" see."), call("c1", namespace="mail", name="send"),
            custom("c2"), call("c3"),
            custom_result("c2", name="patch"), result("c1", [{"type": "input_text", "text": "x"}]),
            {"role": "system", "content": "later"},
            {"type": "reasoning", "summary": [], "encrypted_content": seal("sealed ✓")}, say("yes"),
            {"role": "user", "content": "more"},
        ]
    )  # fmt: skip
    assert [one["role"] for one in made] == [
        "developer", "user", "assistant", "tool", "tool", "system", "assistant", "user",
    ]  # fmt: skip
    turn = made[2]
    assert turn["reasoning_content"] == "hm hm"
    assert [part["text"] for part in turn["content"]] == ["Let me", " see."]
    names = [(one["id"], one["function"]["name"]) for one in turn["tool_calls"]]
    assert names == [("c1", "mail__send"), ("c2", "patch"), ("c3", "f")]
    assert list(turn["tool_calls"][0]["function"]["arguments"].items()) == [("z", 1), ("a", 2)]
    assert turn["tool_calls"][1]["function"]["arguments"] == {"input": "a\nb"}
    assert [one["tool_call_id"] for one in made[3:5]] == ["c1", "c2"]  # in the order of the calls
    assert made[6]["reasoning_content"] == "sealed ✓"


@pytest.mark.parametrize(
    ("items", "code", "param"),
    [
        ([USER, say("x"), think("y")], "invalid_assistant_history", "input[2]"),
        ([USER, call("c"), say("x")], "invalid_assistant_history", "input[2]"),
        ([USER, call("c"), think("x")], "invalid_assistant_history", "input[2]"),
        ([USER, call("c"), call("c")], "invalid_tool_history", "input[2]"),
        ([USER, call("c"), result("c"), call("c")], "invalid_tool_history", "input[3]"),
        ([USER, call("c"), result("c"), result("c")], "invalid_tool_history", "input[3]"),
        ([USER, call("c"), result("d")], "invalid_tool_history", "input[2]"),
        ([USER, call("c"), USER, result("c")], "invalid_tool_history", "input[3]"),
        ([USER, call("c"), custom_result("c")], "invalid_tool_history", "input[2]"),
        ([USER, custom("c"), result("c")], "invalid_tool_history", "input[2]"),
        ([USER, custom("c"), custom_result("c", name="other")], "invalid_tool_history", "input[2]"),
        ([USER, call("a"), call("b"), result("b"), USER], "invalid_tool_history", "input[1]"),
        ([USER, call("a"), call("b"), result("b")], "invalid_tool_history", "input[1]"),
        ([USER | {"id": "m"}, say("x") | {"id": "m"}], "invalid_value", "input[1].id"),
        ([say("x")], "invalid_prompt", "input"),
        ([{"role": "user", "content": ""}], "invalid_prompt", "input"),
        ([], "invalid_prompt", "input"),
    ],
)
def test_orders_that_no_conversation_has(items: list[Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        converse(items)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_cut_call_of_the_chain_was_never_made() -> None:
    earlier: list[dict[str, Any]] = [
        {"id": "m", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"id": "f", "type": "function_call", "status": "incomplete", "call_id": "c", "name": "f", "arguments": '{"a'},
    ]
    assert [one["role"] for one in converse([USER], earlier)] == ["user", "user"]


@given(st.text())
@settings(max_examples=50, deadline=None)
def test_a_sealed_thought_comes_back(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert unseal(seal(text)) == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["type", "role", "content", "name", "id", "call_id", "text", "output", "arguments", "tools"]
    ), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
words = st.sampled_from(["message", "reasoning", "function_call", "function", "namespace", "user", "input_text"])


@given(st.dictionaries(st.sampled_from(sorted(CreateRequest.model_fields)), json_values | words, max_size=4))
@settings(max_examples=80, deadline=None)
def test_any_json_is_taken_or_refused_by_name(fields: dict[str, Any]) -> None:
    error: ApiError | None = None
    try:
        request, _ = parse(**fields)
        messages([], wire_items(request.input))
    except ApiError as caught:
        error = caught
    if error is not None:
        assert error.status == 400
        assert error.code
        assert error.param
        assert error.param.partition(".")[0].partition("[")[0] in {*fields, "input"}
