"""Calls and results of earlier turns; what the template makes of them reads back (spec/serving.md §8.1)."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text import Frontend, PromptError, Tool, ToolParser, custom_tool, parse_answer, tool_history
from tests.text.conftest import text_of

USER = {"role": "user", "content": "hi"}


def call(call_id: str, name: str = "read", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def turn(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def result(call_id: str, content: Any = "done", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def test_results_come_in_the_order_of_the_calls() -> None:
    messages = [USER, turn(call("a"), call("b"), call("c")), result("b", "2"), result("a", "1"), USER]
    made = tool_history(messages)
    assert [message.get("content") for message in made] == ["hi", "", "1", "2", "hi"]
    assert messages[2] == result("b", "2")


def test_arguments_are_decoded_in_their_order() -> None:
    made = tool_history([USER, turn(call("a", arguments='{"b": 1, "a": {"d": 2, "c": 3}}'), call("b", arguments=" "))])
    arguments = [entry["function"]["arguments"] for entry in made[1]["tool_calls"]]
    assert json.dumps(arguments) == '[{"b": 1, "a": {"d": 2, "c": 3}}, {}]'


def test_custom_calls_become_functions_of_one_string() -> None:
    custom = {"id": "a", "type": "custom", "custom": {"name": "patch", "input": "x\n"}}
    made = tool_history([USER, turn(custom), result("a", kind="custom", name="patch")])
    assert made[1]["tool_calls"][0]["function"] == {"name": "patch", "arguments": {"input": "x\n"}}
    assert "kind" not in made[2]


def test_errors_are_marked() -> None:
    parts = [{"type": "text", "text": "no"}]
    messages = [
        turn(call("a"), call("b"), call("c")),
        result("a", "no", is_error=True),
        result("b", parts, is_error=True),
    ]
    made = tool_history([USER, *messages, result("c", None, is_error=False)])
    assert made[2]["content"] == "[tool_error]\nno"
    assert made[3]["content"] == [{"type": "text", "text": "[tool_error]\n"}, *parts]
    assert made[4] == result("c", None)


@pytest.mark.parametrize(
    ("messages", "where", "words"),
    [
        ([USER, result("a")], "messages[1]", "directly follow"),
        ([result("a"), USER], "messages[0]", "directly follow"),
        ([turn(call("a")), USER, result("a")], "messages[2]", "directly follow"),
        ([turn(call("a")), result("b")], "messages[1].tool_call_id", "no call"),
        ([turn(call("a")), result("a"), result("a")], "messages[2]", "two results"),
        ([turn(call("a"), call("b")), result("b")], "messages[0].tool_calls[0]", "no result"),
        ([turn(call("a"), call("a"))], "messages[0].tool_calls[1].id", "two calls"),
        ([turn(call("a")), result("a"), turn(call("a"))], "messages[2].tool_calls[0].id", "two calls"),
        ([turn(call("a")), result("a", kind="custom")], "messages[1]", "type function"),
        ([turn(call("a")), result("a", name="write")], "messages[1]", "tool 'read'"),
        ([turn(call("", "f"))], "messages[0].tool_calls[0].id", "needs an id"),
        ([turn("x")], "messages[0].tool_calls[0]", "not an object"),
        ([turn({"id": "a", "type": "mcp", "mcp": {"name": "x"}})], "messages[0].tool_calls[0]", "neither"),
        ([turn(call("a", arguments="{"))], "messages[0].tool_calls[0].function.arguments", "not JSON"),
        ([turn(call("a", arguments="[]"))], "messages[0].tool_calls[0].function.arguments", "not a JSON object"),
        ([turn(call("a", arguments=[1]))], "messages[0].tool_calls[0].function.arguments", "not a JSON object"),
        ([turn(call("a", arguments='{"a": NaN}'))], "messages[0].tool_calls[0].function.arguments", "not JSON"),
        ([{"role": "user", "tool_calls": [call("a")]}], "messages[0].tool_calls", "only an assistant"),
    ],
)
def test_refused_histories(messages: list[Any], where: str, words: str) -> None:
    with pytest.raises(PromptError, match=words) as raised:
        tool_history(messages)
    assert (raised.value.code, raised.value.param) == ("invalid_tool_history", where)
    assert where in raised.value.message


def test_what_the_apis_allow_beyond() -> None:
    again = [turn(call("a")), result("a"), turn(call("a")), result("a")]
    assert len(tool_history(again, unique_ids=False)) == 4
    leading = [result("x", is_error=True), result("y"), USER]
    assert tool_history(leading, leading_results=True)[0]["content"] == "[tool_error]\ndone"
    open_calls = [turn(call("a"), call("b")), result("a")]
    assert len(tool_history([*open_calls, USER])) == 3
    assert len(tool_history([turn(call("a"))], complete=True)) == 1
    with pytest.raises(PromptError, match="'b' has no result"):
        tool_history([*open_calls, USER], complete=True, field="input[{}]")


# The template of the embedded model

TOOLS = [
    Tool(
        name="save",
        description="Saves <b>.",
        parameters={
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "ratio": {"type": "number"},
                "flag": {"type": "boolean"},
                "list": {"type": "array"},
                "map": {"type": ["object", "null"]},
            },
        },
    ),
    Tool(name="now"),
    custom_tool("patch"),
]
DECLARATIONS = [tool.declaration() for tool in TOOLS]


def test_tools_calls_and_results_in_the_prompt(frontend: Frontend) -> None:
    values = '{"text": "a\\nb", "count": 2, "list": [1, "é"], "flag": true}'
    messages = tool_history(
        [
            USER,
            {**turn(call("1", "save", values), call("2", "now", "")), "content": "Saving."},
            result("2", "noon", is_error=True),
            result("1", "ok"),
        ]
    )
    prompt = text_of(frontend, frontend.prepare(messages, tools=DECLARATIONS).token_ids)
    listed = prompt[prompt.index("<tools>\n") + 8 : prompt.index("\n</tools>")]
    assert listed == "\n".join(json.dumps(entry, ensure_ascii=False) for entry in DECLARATIONS)
    assert (
        "</think>\n\nSaving.\n\n<tool_call>\n<function=save>\n<parameter=text>\na\nb\n</parameter>\n<parameter=count>\n2\n"
        '</parameter>\n<parameter=list>\n[1, "é"]\n</parameter>\n<parameter=flag>\ntrue\n</parameter>\n</function>\n'
        "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call><|im_end|>\n<|im_start|>user\n"
        "<tool_response>\nok\n</tool_response>\n<tool_response>\n[tool_error]\nnoon\n</tool_response><|im_end|>\n"
    ) in prompt


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
WORDS = [
    "a",
    " ",
    "\n",
    "é🌍",
    "<",
    "`",
    "```\n",
    "<parameter=x>",
    "</function>",
    "<tool_call>",
    "</tool_call>",
    "</think>",
]
TEXT = st.lists(st.sampled_from([*WORDS, "<|im_end|>", "\\", '"', "0"]), max_size=8).map("".join)
NESTED = st.recursive(LEAVES | TEXT, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXT,
        "count": st.integers(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "list": st.lists(NESTED, max_size=3),
        "map": st.none() | st.dictionaries(TEXT, NESTED, max_size=3),
    },
).flatmap(lambda values: st.permutations(list(values.items())).map(dict))
CALLS = st.lists(
    ARGUMENTS.map(lambda values: ("save", values))
    | st.just(("now", {}))
    | TEXT.map(lambda text: ("patch", {"input": text})),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60)
@given(CALLS, st.sampled_from(["", "Hi.", "Hi.\n", "a\n\nb", "The `x` <y>"]))
def test_what_is_rendered_reads_back(frontend: Frontend, calls: list[tuple[str, Any]], content: str) -> None:
    entries = [call(str(index), name, json.dumps(values)) for index, (name, values) in enumerate(calls)]
    messages = tool_history([USER, {"role": "assistant", "content": content, "tool_calls": entries}])
    prompt = text_of(frontend, frontend.prepare(messages, tools=DECLARATIONS, add_generation_prompt=False).token_ids)
    start = prompt.rindex("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    answer = prompt[start:].removeprefix("<|im_start|>assistant\n<think>\n\n</think>\n\n").removesuffix("<|im_end|>\n")
    _, parsed = parse_answer(ToolParser(TOOLS), "", answer, ended=True)
    assert parsed.text == content
    assert [(made.name, dict(made.values)) for made in parsed.calls] == calls
    assert [list(made.values) for made in parsed.calls] == [list(values) for _, values in calls]
