"""Fields, turns and hints of a Messages request, without a server (spec/serving.md §4.4, §6.8, §9; cases A7, X4)."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.api.errors import ApiError, from_validation
from engine.api.generation import Ask
from engine.api.messages_prompt import ask_of, count_ask_of
from engine.api.messages_request import MessagesRequest, PromptRequest
from tests.api.test_schemas import ABSURD

USER = {"role": "user", "content": "hi"}
FITTING = {
    "max_tokens": {"2147483647"},
    "temperature": {"0"},
    "top_p": {"0"},
    "top_k": {"0"},
}


def parse_bytes(data: bytes) -> MessagesRequest:
    try:
        return MessagesRequest.model_validate_json(data)
    except ValidationError as error:
        raise from_validation(error, data) from error


def asked(**fields: Any) -> Ask:
    """What a request with these fields asks for."""
    body = {"model": "m", "messages": [USER]} | fields
    return ask_of(parse_bytes(json.dumps(body).encode()))


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        asked(**fields)
    assert caught.value.status == 400
    assert caught.value.anthropic("req")["error"]["type"] == "invalid_request_error"
    return caught.value


def turn(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value} | fields


def use(identity: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "look", "input": arguments}


def result(identity: str, content: Any = "seen", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": content} | fields


@pytest.mark.parametrize("field", FITTING)
@pytest.mark.parametrize("number", ABSURD)
def test_absurd_numbers_are_refused_by_name(field: str, number: str) -> None:
    data = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"%s":%s}' % (field.encode(), number.encode())
    if number in FITTING[field]:
        assert getattr(parse_bytes(data), field) == float(number)
        return
    with pytest.raises(ApiError) as caught:
        parse_bytes(data)
    assert (caught.value.status, caught.value.param) == (400, field)
    assert field in caught.value.message


@pytest.mark.parametrize("number", ABSURD)
def test_absurd_budgets_are_refused_by_name(number: str) -> None:
    data = (
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"thinking":{"type":"enabled","budget_tokens":%s}}'
        % number.encode()
    )
    with pytest.raises(ApiError) as caught:
        parse_bytes(data)
    assert caught.value.param == "thinking.budget_tokens"


MARK = {"type": "ephemeral"}
REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"model": ""}, "invalid_value", "model"),
    ({"model": 7}, "invalid_type", "model"),
    ({"messages": []}, "invalid_value", "messages"),
    ({"max_tokens": 0}, "cache_prewarm_not_supported", "max_tokens"),
    ({"temperature": 1.5}, "invalid_value", "temperature"),
    ({"stop_sequences": [""]}, "invalid_value", "stop_sequences[0]"),
    ({"stop_sequences": ["a" * 1000] * 17}, "invalid_value", "stop_sequences"),
    ({"messages": [{"role": "developer", "content": "x"}]}, "unsupported_role", "messages[0].role"),
    ({"messages": [turn("user", {"type": "image"})]}, "vision_disabled", "messages[0].content[0].type"),
    ({"messages": [turn("user", {"type": "document"})]}, "documents_not_supported", "messages[0].content[0].type"),
    ({"messages": [turn("user", {"type": "search_result"})]}, "search_results_not_supported",
     "messages[0].content[0].type"),
    ({"messages": [turn("assistant", {"type": "server_tool_use"})]}, "server_tools_not_supported",
     "messages[0].content[0].type"),
    ({"messages": [turn("user", {"type": "web_search_tool_result"})]}, "server_tools_not_supported",
     "messages[0].content[0].type"),
    ({"messages": [turn("user", {"type": "container_upload"})]}, "files_not_supported", "messages[0].content[0].type"),
    ({"messages": [turn("user", {"type": "riddle"})]}, "content_block_not_supported", "messages[0].content[0].type"),
    ({"messages": [turn("user", {"text": "no type"})]}, "invalid_value", "messages[0].content[0].type"),
    ({"messages": [turn("user", {"type": "text"})]}, "invalid_value", "messages[0].content[0].text"),
    ({"messages": [turn("user", result("a", [{"type": "image"}]))]}, "vision_disabled",
     "messages[0].content[0].content[0].type"),
    ({"messages": [turn("user", use("a"))]}, "content_block_not_supported", "messages[0]"),
    ({"messages": [USER, turn("system", result("a"))]}, "content_block_not_supported", "messages[1]"),
    ({"messages": [turn("assistant", {"type": "thinking", "thinking": "x", "cache_control": MARK}), USER]},
     "invalid_cache_control", "messages[0].content[0].cache_control"),
    ({"messages": [turn("assistant", use("a") | {"input": "text"}), USER]}, "invalid_type",
     "messages[0].content[0].input"),
    ({"messages": [turn("assistant", use("a") | {"caller": {"type": "code_execution_20250825"}}), USER]},
     "tool_caller_not_supported", "messages[0].content[0].caller"),
    ({"system": [{"type": "image"}]}, "vision_disabled", "system[0].type"),
    ({"system": [text("x", cache_control={"type": "forever"})]}, "invalid_value", "system[0].cache_control.type"),
    ({"system": [text("x", cache_control=MARK | {"ttl": "2h"})]}, "invalid_value", "system[0].cache_control.ttl"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "invalid_tool_name", "tools[0].name"),
    ({"tools": [{"name": "a" * 129, "input_schema": {}}]}, "invalid_tool_name", "tools[0].name"),
    ({"tools": [{"name": "a", "input_schema": {}}] * 2}, "duplicate_tool_name", "tools[1].name"),
    ({"tools": [{"name": "a"}]}, "invalid_value", "tools[0].input_schema"),
    ({"tools": [{"name": "a", "input_schema": {}, "strict": True}]}, "unsupported_json_schema",
     "tools[0].input_schema"),
    ({"tools": [{"name": "a", "input_schema": {}, "defer_loading": True}]}, "deferred_tools_not_supported",
     "tools[0].defer_loading"),
    ({"tools": [{"name": "a", "input_schema": {}, "allowed_callers": ["code_execution_20250825"]}]},
     "tool_caller_not_supported", "tools[0].allowed_callers"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "server_tools_not_supported", "tools[0]"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "anthropic_tools_not_supported", "tools[0]"),
    ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "toolsets_not_supported", "tools[0]"),
    ({"tool_choice": {"type": "any"}}, "invalid_tool_choice", "tool_choice"),
    ({"tool_choice": {"type": "tool"}}, "invalid_tool_choice", "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "a"}}, "invalid_tool_choice", "tool_choice"),
    ({"tool_choice": {"type": "auto", "name": "a"}}, "invalid_tool_choice", "tool_choice"),
    ({"thinking": {"type": "deep"}}, "invalid_value", "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "invalid_value", "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 2000}, "invalid_value",
     "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 2000}}, "invalid_value", "thinking"),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking_display_not_supported", "thinking.display"),
    ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "none"}}, "conflicting_template_option",
     "output_config.effort"),
    ({"output_config": {"effort": "huge"}}, "invalid_value", "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "invalid_value", "output_config.format"),
    ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "invalid_value", "structured_outputs"),
    ({"structured_outputs": {"regex": "a"}, "output_config": {"format": {"type": "json_object"}}}, "invalid_value",
     "structured_outputs"),
    ({"container": "c"}, "container_not_supported", "container"),
    ({"mcp_servers": [{"url": "x"}]}, "toolsets_not_supported", "mcp_servers"),
    ({"graft": "g"}, "unknown_graft", "graft"),
    ({"system": [text(str(number), cache_control=MARK) for number in range(5)]}, "too_many_cache_breakpoints",
     "system[4]"),
    ({"system": [text(str(number), cache_control=MARK) for number in range(4)], "cache_control": MARK},
     "too_many_cache_breakpoints", "cache_control"),
    ({"messages": [turn("user", text("x", cache_control=MARK | {"ttl": "1h"}))], "cache_control": MARK},
     "conflicting_cache_ttl", "cache_control"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "param"), REFUSALS)
def test_what_is_refused_names_its_field(fields: dict[str, Any], code: str, param: str) -> None:
    error = refused(**fields)
    assert (error.code, error.param) == (code, param)
    # There is no param in Anthropic's shape, so the message says where.
    assert (
        param.rpartition(".")[2].rpartition("]")[0] in error.message or param.split(".", maxsplit=1)[0] in error.message
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "u"}, "service_tier": "auto", "context_management": {"edits": []}, "unheard_of": 1},
        {"container": None, "mcp_servers": [], "graft": "", "tool_choice": {"type": "none"}},
        {"tools": [{"name": "a" * 128, "type": "custom", "input_schema": {"type": "object"}, "strict": False}]},
        {"tools": [{"name": "a", "input_schema": {}, "allowed_callers": ["direct"], "defer_loading": False}]},
        {"stop_sequences": [str(number) for number in range(100)]},
        {"thinking": {"type": "adaptive", "display": "summarized"}},
        {"system": [text("x", cache_control=MARK | {"ttl": "1h", "scope": "global"})], "cache_control": MARK},
        {"messages": [turn("user", text("x", cache_control=None, citations=None))]},
    ],
)
def test_neutral_and_unknown_fields_are_accepted(fields: dict[str, Any]) -> None:
    asked(**fields)


@pytest.mark.parametrize(
    ("fields", "thinking", "effort"),
    [
        ({}, None, None),
        ({"thinking": {"type": "adaptive"}}, True, None),
        ({"thinking": {"type": "enabled"}}, True, None),
        ({"thinking": {"type": "disabled"}}, False, None),
        ({"output_config": {"effort": "low"}}, None, "low"),  # turns thinking on, further down
        ({"output_config": {"effort": "none"}}, None, "none"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, True, "max"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, False, None),
    ],
)
def test_thinking_and_effort(fields: dict[str, Any], thinking: bool | None, effort: str | None) -> None:
    found = asked(**fields)
    assert (found.enable_thinking, found.reasoning_effort) == (thinking, effort)


def test_a_budget_is_passed_on() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    assert asked(thinking=thinking, max_tokens=2001).thinking_budget == 2000
    assert asked(thinking=thinking).thinking_budget == 2000
    assert asked(thinking={"type": "adaptive"}).thinking_budget is None


def test_counting_has_fewer_rules() -> None:
    body: dict[str, Any] = {"model": "m", "messages": [USER], "tools": [{"name": "a", "input_schema": {}}]}
    body |= {
        "tool_choice": {"type": "any"},
        "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    }
    assert count_ask_of(PromptRequest.model_validate(body)).tools.tools[0].name == "a"


def test_neighbours_are_joined_and_blocks_become_one_turn() -> None:
    found = asked(
        system=[text("one"), text("two")],
        messages=[
            {"role": "system", "content": "three"},
            turn("user", text("a"), text("b")),
            {"role": "user", "content": "c"},
            turn("assistant", {"type": "thinking", "thinking": "hm", "signature": "from elsewhere"}, text("d")),
            turn("assistant", {"type": "redacted_thinking", "data": "?"}, text("e")),
            turn("user", text("f")),
        ],
    )
    assert found.messages == [
        {"role": "system", "content": "onetwothree"},
        {"role": "user", "content": "abc"},
        {"role": "assistant", "content": "de", "reasoning_content": "hm"},
        {"role": "user", "content": "f"},
    ]
    assert not found.continue_final_message


@pytest.mark.parametrize("signature", ["", "x", None, 7, {"a": 1}])
def test_no_signature_is_refused(signature: Any) -> None:
    block = {"type": "thinking", "thinking": "hm", "signature": signature}
    assert asked(messages=[USER, turn("assistant", block, text("a")), USER]).messages[1]["reasoning_content"] == "hm"


def test_results_are_paired_in_the_order_of_the_calls() -> None:
    found = asked(
        messages=[
            USER,
            turn("assistant", text("looking"), use("a", z=1, y=[2], x={"k": None}), use("b")),
            turn("user", result("b", [text("two"), text(" parts")]), result("a", "bad", is_error=True), text("and?")),
            {"role": "system", "content": "a reminder"},
        ]
    )
    calls, first, second, question, reminder = found.messages[1:]
    assert [call["id"] for call in calls["tool_calls"]] == ["a", "b"]
    assert list(calls["tool_calls"][0]["function"]["arguments"]) == ["z", "y", "x"]  # as they came
    assert (first["role"], first["tool_call_id"], first["content"]) == ("tool", "a", "[tool_error]\nbad")
    assert (second["tool_call_id"], second["content"]) == ("b", "two parts")
    assert question == {"role": "user", "content": "and?"}
    assert reminder == {"role": "system", "content": "a reminder"}


def test_a_result_may_be_empty_and_a_history_may_start_with_results() -> None:
    found = asked(messages=[turn("user", {"type": "tool_result", "tool_use_id": "a"}, text("go on"))])
    assert [message["role"] for message in found.messages] == ["tool", "user"]
    assert found.messages[0]["content"] == ""


CALLS = [USER, turn("assistant", use("a"), use("b"))]


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([*CALLS, turn("user", result("a"))], "messages[2]"),  # b is missing
        ([*CALLS, turn("user", result("a"), result("b"), result("c"))], "messages[2].content[2]"),
        ([*CALLS, turn("user", result("a"), result("b"), result("a"))], "messages[2].content[2]"),
        ([*CALLS, turn("user", result("a"), text("x"), result("b"))], "messages[2].content[2]"),
        ([*CALLS, turn("system", text("x")), turn("user", result("a"), result("b"))], "messages[2]"),
        (
            [*CALLS, turn("user", result("a"), result("b")), turn("user", text("x"), result("a"))],
            "messages[3].content[1]",
        ),
        ([USER, turn("assistant", text("x")), turn("user", result("a"))], "messages[2].content[0]"),
        ([USER, turn("assistant", use("a"), use("a")), turn("user", result("a"))], "messages[1].content[1]"),
        ([*CALLS, USER], "messages[2]"),
    ],
)
def test_histories_that_do_not_pair(messages: list[Any], place: str) -> None:
    error = refused(messages=messages)
    assert (error.code, error.param) == ("invalid_tool_history", place)
    assert error.message.startswith(place)


@pytest.mark.parametrize("last", [use("a"), {"type": "thinking", "thinking": "x"}])
def test_only_text_can_be_continued(last: dict[str, Any]) -> None:
    assert refused(messages=[USER, turn("assistant", text("x"), last)]).code == "assistant_prefill_not_supported"


@pytest.mark.parametrize(
    "fields", [{"thinking": {"type": "adaptive"}}, {"chat_template_kwargs": {"enable_thinking": True}}]
)
def test_continuing_while_thinking_is_refused(fields: dict[str, Any]) -> None:
    messages = [USER, {"role": "assistant", "content": "x"}]
    assert refused(messages=messages, **fields).code == "assistant_prefill_not_supported"
    found = asked(messages=messages, output_config={"effort": "high"})
    assert (found.continue_final_message, found.enable_thinking, found.reasoning_effort) == (True, False, None)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(max_size=4)
    | st.sampled_from(["text", "tool_use", "user"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "id", "name", "input"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(
    st.fixed_dictionaries(
        {"model": st.just("m"), "messages": st.lists(_JSON, max_size=3)},
        optional={"system": _JSON, "tools": _JSON, "thinking": _JSON, "tool_choice": _JSON, "cache_control": _JSON},
    )
)
def test_anything_is_understood_or_refused(body: dict[str, Any]) -> None:
    with contextlib.suppress(ApiError):  # and nothing else
        ask_of(parse_bytes(json.dumps(body).encode()))
