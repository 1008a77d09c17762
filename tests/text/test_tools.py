"""Declared tools, choices, and the types of arguments (spec/serving.md §6.5, spec/cases.md A8)."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text import PromptError, Tool, ToolChoice, check_tools, custom_tool
from engine.text.tool_values import OMITTED, allowed_types, parse_json, read_value, write_json

READ = Tool(name="read", parameters={"type": "object", "b": 1, "a": 2})


def test_declarations_keep_the_order_of_members() -> None:
    assert json.dumps(READ.declaration()) == (
        '{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "b": 1, "a": 2}, '
        '"strict": false}}'
    )
    full = Tool(name="f", description="Does.", strict=True, input_examples=[{"a": 1}]).declaration()["function"]
    assert list(full) == ["name", "parameters", "strict", "description", "input_examples"]
    assert full["parameters"] == {"type": "object", "properties": {}}


def test_a_custom_tool_is_a_strict_function_of_one_string() -> None:
    tool = custom_tool("patch", "Patches.", 'start: "a"', "lark")
    function = tool.declaration()["function"]
    assert (function["strict"], list(function["parameters"]["properties"])) == (True, ["input"])
    assert function["description"] == 'Patches.\n\nThe input follows this lark grammar:\nstart: "a"'
    assert custom_tool("patch").description is None


@pytest.mark.parametrize("name", ["", "a b", "a.b", "é", "a" * 65, "a\n", "<function="])
def test_names_that_cannot_be_carried(name: str) -> None:
    with pytest.raises(PromptError) as raised:
        check_tools([READ, Tool(name=name)], field="tools[{}].name")
    assert (raised.value.code, raised.value.param) == ("invalid_tool_name", "tools[1].name")


def test_names() -> None:
    check_tools([READ, Tool(name="a" * 64), Tool(name="Az0_-")])
    check_tools([Tool(name="a" * 128)], longest=128)
    with pytest.raises(PromptError, match="also the name of tool 0") as raised:
        check_tools([READ, READ])
    assert (raised.value.code, raised.value.param) == ("duplicate_tool_name", "tools[1].function.name")
    with pytest.raises(PromptError, match="arguments are an object"):
        check_tools([Tool(name="a", parameters={"type": "string"})])


def test_choices() -> None:
    tools = [READ, Tool(name="write")]
    assert list(ToolChoice.auto().callable(tools)) == ["read", "write"]
    assert list(ToolChoice.auto(names=["write"]).callable(tools)) == ["write"]
    assert ToolChoice.none().callable(tools) == {}
    assert ToolChoice.none().satisfied(0)
    assert not ToolChoice.none().satisfied(1)
    assert ToolChoice.auto().satisfied(9)
    assert not ToolChoice.auto(parallel=False).satisfied(2)
    assert not ToolChoice.required().satisfied(0)
    assert ToolChoice.required().satisfied(2)
    assert not ToolChoice.named("read").satisfied(2)
    assert ToolChoice.named("read", several=True).satisfied(2)
    assert [choice.forced for choice in (ToolChoice.auto(), ToolChoice.required())] == [False, True]
    for choice in (ToolChoice.auto(), ToolChoice.none(), ToolChoice.named("read"), ToolChoice.required()):
        choice.check(tools)
    ToolChoice.auto().check([])
    for choice, available in ((ToolChoice.named("x"), tools), (ToolChoice.required(), [])):
        with pytest.raises(PromptError) as raised:
            choice.check(available, "tool_choice")
        assert (raised.value.code, raised.value.param) == ("invalid_tool_choice", "tool_choice")


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"const": 1}, {"enum": ["a", None]}]}, {"integer", "string", "null"}),
        ({"anyOf": [{"type": "integer"}, {}]}, None),
        ({"allOf": [{"$ref": "#/$defs/Word"}], "description": "x"}, {"string"}),
        ({"anyOf": [{"anyOf": [{"$ref": "#/$defs/Word"}]}, {"type": "array"}]}, {"string", "array"}),
        ({"type": "integer", "enum": ["a"]}, {"integer"}),
        ({"$ref": "#/$defs/Round"}, None),
        ({"$ref": "#/$defs/none"}, None),
        ({"$ref": "https://example.org/x"}, None),
        ({"type": "str"}, None),
        ({"type": 3}, None),
        ({"type": []}, None),
        ({}, None),
        (True, None),
        (None, None),
    ],
)
def test_allowed_types(schema: Any, types: set[str] | None) -> None:
    definitions = {"Word": {"type": "string"}, "Round": {"$ref": "#/$defs/Round"}}
    parameters = {"type": "object", "properties": {"k": schema}, "$defs": definitions}
    assert allowed_types(parameters, "k") == (None if types is None else frozenset(types))


def test_arguments_that_are_not_properties() -> None:
    assert allowed_types({"additionalProperties": {"type": "integer"}}, "k") == frozenset({"integer"})
    assert allowed_types({"additionalProperties": False}, "k") is None
    root = {"$ref": "#/$defs/Root", "$defs": {"Root": {"properties": {"k": {"type": "boolean"}}}}}
    assert allowed_types(root, "k") == frozenset({"boolean"})
    assert allowed_types({"$ref": "#"}, "k") is None


def test_a_schema_that_multiplies_itself_is_given_up() -> None:
    schema = {"properties": {"k": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 8}}}
    began = time.process_time()
    assert allowed_types(schema, "k") is None
    assert time.process_time() - began < 1


@given(st.text(max_size=20))
def test_declared_strings_are_never_touched(text: str) -> None:
    assert read_value(text, frozenset({"string", "integer", "null"})) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(JSON)
def test_json_values_come_back(value: Any) -> None:
    again = read_value(write_json(value), None)
    assert again == value
    assert type(again) is type(value)


@given(st.text(max_size=20), st.sets(st.sampled_from(["integer", "number", "boolean", "array", "object"]), min_size=1))
def test_any_text_gives_a_value_that_json_can_carry(text: str, types: set[str]) -> None:
    value = read_value(text, frozenset(types))
    if value is OMITTED:
        assert not text.strip()
    else:
        assert json.loads(write_json(value).encode()) == value


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e999", '"\\ud800"', "[" * 100_000, "9" * 5000, "", "{"])
def test_not_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
