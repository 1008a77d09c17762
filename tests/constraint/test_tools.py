"""Calls under the structure constraint: what random logits write is always read back as calls that fit."""

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.constraint.constraint import json_schema
from engine.constraint.errors import ConstraintError
from engine.constraint.masks import Masks
from engine.constraint.tools import check_strict, tool_grammar
from engine.text.tool_calls import ToolParser
from engine.text.tools import Tool, ToolChoice
from tests.constraint.schemas import schemas
from tests.constraint.test_languages import accepts
from tests.constraint.test_loop import ask, harness
from tests.constraint.words import said

OPEN = Tool(name="look-up", parameters={"type": "object", "properties": {"zip": {"type": "string"}}})
STRICT = Tool(
    name="look", strict=True,
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"}, "unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1},
            "zip": {"$ref": "#/$defs/zip"}, "more": {"type": "array", "items": {"type": "null"}, "maxItems": 2},
        },
        "required": ["city", "days"], "additionalProperties": False,
        "$defs": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
    },
)  # fmt: skip


def call(name: str, *parameters: tuple[str, str]) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


FINE = call("look", ("city", "Köln\n<b>"), ("days", "2"))


@pytest.mark.parametrize(
    ("choice", "right", "wrong"),
    [
        (ToolChoice.auto(), ["", "hello <b>", "so: " + FINE, call("look-up") + "\n" + FINE,
          call("look-up", ("any", "\n\n"))],
         ["<tool_call>", "<tool_call>x", call("nope"), FINE + " and", call("look", ("city", "x"))]),
        (ToolChoice.auto(parallel=False), ["x", FINE], [FINE + "\n" + FINE]),
        (ToolChoice.required(), [FINE, FINE + "\n" + FINE], ["", "x", "x " + FINE]),
        (ToolChoice.required(parallel=False), [FINE, call("look-up")], [FINE + "\n" + FINE]),
        (ToolChoice.named("look-up"), [call("look-up")], [FINE, call("look-up") * 2, "x"]),
        (ToolChoice.named("look-up", several=True), [call("look-up") + "\n" + call("look-up")], [FINE]),
        (ToolChoice.none(), ["x <tool_cal", ""], [FINE, "x <tool_call>"]),
        (ToolChoice.auto(names=["look"]), [FINE, "x"], [call("look-up")]),
    ],
)  # fmt: skip
def test_choices(choice: ToolChoice, right: list[str], wrong: list[str]) -> None:
    grammar = tool_grammar([OPEN, STRICT], choice)
    for text in right:
        assert accepts(grammar, text), text
    for text in wrong:
        assert not accepts(grammar, text), text


@pytest.mark.parametrize(
    ("parameters", "fits"),
    [
        ([("city", ""), ("days", "1")], True),
        ([("city", "x"), ("unit", "F"), ("days", "1"), ("zip", "12345"), ("more", "[null,null]")], True),
        ([("days", "1"), ("city", "x")], False),
        ([("city", "x"), ("days", "0")], False),
        ([("city", "x"), ("days", '"1"')], False),
        ([("city", "x"), ("unit", "K"), ("days", "1")], False),
        ([("city", "x"), ("days", "1"), ("zip", "1234")], False),
        ([("city", "x"), ("days", "1"), ("more", "[ null]")], False),
        ([("city", "x"), ("days", "1"), ("other", "1")], False),
    ],
)  # fmt: skip
def test_strict_arguments(parameters: list[tuple[str, str]], fits: bool) -> None:
    assert accepts(tool_grammar([STRICT], ToolChoice.required()), call("look", *parameters)) == fits


def test_text_of_a_form_or_calls() -> None:
    grammar = tool_grammar([OPEN], ToolChoice.auto(), content=json_schema({"type": "null"}))
    assert accepts(grammar, "null")
    assert accepts(grammar, call("look-up"))
    assert not accepts(grammar, "hello")
    assert not accepts(grammar, "null" + call("look-up"))
    assert not accepts(tool_grammar([OPEN], ToolChoice.required(), content=json_schema({"type": "null"})), "null")


@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [
        ({"type": "object"}, ""),
        ({"type": "object", "additionalProperties": False, "allOf": [{}]}, "/allOf"),
        ({"properties": {"a": {"type": ["string", "null"]}}}, "/properties/a"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}, "/properties/a"),
        ({"properties": {"a": {}}}, "/properties/a"),
        ({"properties": {"a": {"type": "string", "format": "date"}}}, "/properties/a/format"),
        ({"properties": {"a>b": {"type": "string"}}}, "/properties/a>b"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "/properties/a"),
    ],
)  # fmt: skip
def test_refused_strict_schemas(parameters: dict[str, Any], pointer: str) -> None:
    if "properties" in parameters:
        parameters = {"type": "object", "additionalProperties": False} | parameters
    with pytest.raises(ConstraintError) as refused:
        check_strict(Tool(name="x", strict=True, parameters=parameters))
    assert refused.value.code == "unsupported_json_schema"
    assert refused.value.pointer == pointer


TEXTS = st.sampled_from([
    {"type": "string", "maxLength": 6}, {"enum": ["a", "b\n", "</parameter>"]}, {"const": ""},
    {"type": "string", "pattern": "^[a-c ]+$", "maxLength": 9}, {"type": "string", "minLength": 2, "maxLength": 5},
    {"anyOf": [{"const": "one"}, {"type": "string", "pattern": "^x{2,5}$"}]},
])  # fmt: skip


@st.composite
def tools(draw: st.DrawFn) -> Tool:
    values = TEXTS | schemas().filter(lambda schema: "$defs" not in schema)
    properties = draw(st.dictionaries(st.sampled_from(["a", "b", "é ü"]), values, max_size=3))
    required = [name for name in properties if draw(st.booleans())]
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Tool(name="made", strict=True, parameters=parameters)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tools(), st.integers(0, 1000))
def test_forced_calls_are_read_back_and_fit(masks: Masks, tool: Tool, seed: int) -> None:
    try:
        check_strict(tool)
    except ConstraintError:
        return  # a union of texts and others
    grammar = tool_grammar([tool], ToolChoice.required(parallel=False)).source(after_thought=False)
    (answer,) = harness(masks).run(ask(grammar, 500, seed=seed, temperature=1.5))
    if answer.finish == "length":
        return
    assert answer.last.constraint is not None
    assert answer.last.constraint.complete
    result = ToolParser([tool], ToolChoice.required(parallel=False)).parse(said(answer.tokens))
    (made,) = result.calls
    assert made.name == "made"
    jsonschema_rs.validate(dict(tool.schema), dict(made.values))
