"""The corpus of answers with calls, whole and cut at every place (spec/serving.md §6.5, spec/cases.md A2-A4, A8)."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text import Delta
from engine.text.stream import Output
from engine.text.tool_calls import Call, Parsed, ToolParser
from engine.text.tool_events import CallArguments, CallEnd, CallStart, Event
from engine.text.tool_stream import Commit, ToolCallStream, parse_answer
from engine.text.tools import Tool, ToolChoice, custom_tool

CORPUS = Path(__file__).parent / "corpus"
BYTES = [bytes([byte]) for byte in range(256)]
COMMITS: tuple[Commit, ...] = ("end", "call", "argument")


def declared() -> list[Tool]:
    entries = json.loads((CORPUS / "tools.json").read_text())
    return [custom_tool(e["name"]) if e.get("kind") == "custom" else Tool(**e) for e in entries]


TOOLS = declared()
PARSER = ToolParser(TOOLS)
TOLERANT = ToolParser(TOOLS, tolerant=True)


def cases() -> Iterator[Any]:
    for file in sorted(CORPUS.glob("*.json")):
        if file.stem != "tools":
            for case in json.loads(file.read_text()):
                yield pytest.param(case, id=f"{file.stem}: {case['name']}")


ALL = list(cases())


@dataclass
class Joined:
    """What a client has after the last event."""

    reasoning: str
    content: str
    calls: list[tuple[str, str]]
    unfinished: list[tuple[str, str]]
    fallback: str = "none"


def joined(events: Iterable[Event]) -> Joined:
    made = Joined("", "", [], [])
    calls: dict[int, list[str]] = {}
    ended: set[int] = set()
    for event in events:
        match event:
            case Delta("reasoning", text):
                assert not made.content
                assert text
                made.reasoning += text
            case Delta("content", text):
                assert text
                made.content += text
            case CallStart(index, name, _):
                assert index == len(calls)
                calls[index] = [name, ""]
            case CallArguments(index, text):
                assert text
                assert index == len(calls) - 1
                calls[index][1] += text
            case CallEnd(index):
                assert index == len(calls) - 1
                ended.add(index)
    for index, (name, arguments) in calls.items():
        (made.calls if index in ended else made.unfinished).append((name, arguments))
    return made


def stream(
    parser: ToolParser, reasoning: str, content: str, cuts: Iterable[int], *, ended: bool, commit: Commit = "end"
) -> Joined:
    """As the API does it: bytes as tokens, characters, channels, calls."""
    thinking = bool(reasoning)
    data = (reasoning + ("</think>\n\n" if content and thinking else "") + content).encode()
    output = Output(BYTES, thinking=thinking)
    calls = ToolCallStream(parser, commit=commit)
    events: list[Event] = []
    for begin, end in pairwise([0, *cuts, len(data)]):
        events += calls.push(output.push(data[begin:end]))
    events += calls.push(output.finish())
    events += calls.finish(ended=ended)
    return replace(joined(events), fallback=calls.result.fallback)


def as_expected(calls: Iterable[Call]) -> list[list[Any]]:
    return [[call.name, call.arguments if call.kind == "custom" else dict(call.values)] for call in calls]


def as_sent(parsed: Parsed) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in parsed.calls]


def test_the_corpus_is_large_enough() -> None:
    assert len(ALL) >= 60


@pytest.mark.parametrize("case", ALL)
def test_corpus(case: dict[str, Any]) -> None:
    parser = TOLERANT if case.get("tolerant") else PARSER
    ended = case.get("ended", True)
    expected = case["expected"]
    reasoning = case.get("reasoning", "")
    thought, parsed = parse_answer(parser, reasoning, case["output"], ended=ended)
    assert parsed.text == expected["text"]
    assert as_expected(parsed.calls) == expected["calls"]
    for call, (_, values) in zip(parsed.calls, expected["calls"], strict=True):
        if call.kind == "function":
            assert json.loads(call.arguments) == values
            assert list(call.values) == list(values)
            assert list(map(type, call.values.values())) == list(map(type, values.values()))
    assert parsed.fallback == expected["fallback"]
    assert parsed.withheld == expected.get("withheld", "")
    assert thought == expected.get("thought", reasoning)
    whole = Joined(thought, parsed.text, as_sent(parsed), [], parsed.fallback)
    size = len((reasoning + case["output"]).encode())
    assert whole == stream(parser, reasoning, case["output"], [], ended=ended)
    assert whole == stream(parser, reasoning, case["output"], range(1, size), ended=ended)
    deltas = [Delta("reasoning", reasoning)] * bool(reasoning) + [Delta("content", case["output"])]
    for index, delta in enumerate(deltas):
        for cut in range(1, len(delta.text)):
            halves = [Delta(delta.channel, delta.text[:cut]), Delta(delta.channel, delta.text[cut:])]
            calls = ToolCallStream(parser)
            events: list[Event] = []
            for part in [*deltas[:index], *halves, *deltas[index + 1 :]]:
                events += calls.push([part] * bool(part.text))
            assert whole == replace(joined(events + calls.finish(ended=ended)), fallback=calls.result.fallback), cut


PIECES = [
    *("<tool_call>", "</tool_call>", "<function=read>", "<function=write>", "<function=no>", "<function=now>"),
    *(
        "</function>",
        "<parameter=path>",
        "<parameter=limit>",
        "<parameter=content>",
        "</parameter>",
        "<function_calls>",
    ),
    *('<invoke name="read">', "</invoke>", "<param=path>", "</param>", "</function_calls>", "<tool_calls", "<function"),
    *("\n", "\n", "\n\n", " ", "`", "``", "```", "\n```\n", "~~~", "<", "text", "é🌍", "12", "</", ">", "\n- ", "="),
]
BLOCKS = [
    "<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "<tool_call>\n<function=write>\n<parameter=path>\n\n</parameter>\n<parameter=content>\nx\n<p>\n</parameter>\n",
    "<tool_call>\n<function=apply_patch>\n<parameter=input>\n@@ é\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=typed>\n<parameter=zip>\n1\n</parameter>\n<parameter=flag>\nTRUE\n</parameter>\n</function>\n",
]
TEXTS = st.lists(st.sampled_from(PIECES + BLOCKS), max_size=14).map("".join)


@given(TEXTS, TEXTS, st.booleans(), st.booleans(), st.lists(st.integers(0, 1200), max_size=8))
def test_a_stream_gives_what_the_parser_gives(
    reasoning: str, content: str, ended: bool, tolerant: bool, cuts: list[int]
) -> None:
    reasoning = reasoning if "</think>" not in reasoning else ""
    content = content.lstrip()
    parser = TOLERANT if tolerant else PARSER
    thought, parsed = parse_answer(parser, reasoning, content, ended=ended)
    size = len((reasoning + content).encode())
    for places in (sorted(cut for cut in cuts if cut <= size), range(1, size)):
        assert stream(parser, reasoning, content, places, ended=ended) == Joined(
            thought, parsed.text, as_sent(parsed), [], parsed.fallback
        )


@given(TEXTS, st.booleans())
def test_no_byte_is_lost_or_doubled(content: str, ended: bool) -> None:
    parsed = PARSER.parse(content, ended=ended)
    if parsed.calls:
        assert content.startswith(parsed.text)
        assert content[len(parsed.text) :].lstrip().startswith("<")
    else:
        assert parsed.text == content
    assert parsed.withheld == ""


@given(TEXTS, st.booleans(), st.sampled_from(["call", "argument"]), st.lists(st.integers(0, 1200), max_size=8))
def test_early_commits_do_not_depend_on_the_cuts(content: str, ended: bool, commit: Commit, cuts: list[int]) -> None:
    _, parsed = parse_answer(PARSER, "", content, ended=ended, commit=commit)
    whole = stream(PARSER, "", content, [], ended=ended, commit=commit)
    assert (whole.content, whole.calls) == (parsed.text, as_sent(parsed))
    size = len(content.encode())
    for places in (sorted(cut for cut in cuts if cut <= size), range(1, size)):
        assert stream(PARSER, "", content, places, ended=ended, commit=commit) == whole


FRAGMENTS = ["a", "é", "🌍", "\n", '"', "\\", "<", "/", "`", "</parameter>", "<tool_call>", "<parameter=x>"]
VALUE = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
WRITTEN = st.lists(
    st.one_of(
        st.builds(lambda path, text: ("write", {"path": path, "content": text}), VALUE, VALUE),
        st.builds(lambda path: ("read", {"path": path, "limit": 3}), VALUE),
        st.builds(lambda text: ("apply_patch", {"input": text}), VALUE),
        st.just(("now", {})),
    ),
    max_size=3,
)


def written(calls: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Calls as a constrained model writes them."""
    blocks = []
    for name, values in calls:
        parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        blocks.append(f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
    return "\n".join(blocks)


@given(WRITTEN, st.sampled_from(["", "Hi.", "A `"]), st.sampled_from(["call", "argument"]), st.data())
def test_enforced_structure_needs_no_wait(
    calls: list[tuple[str, dict[str, Any]]], said: str, commit: Commit, data: st.DataObject
) -> None:
    calls = [(n, v) for n, v in calls if not any("\n</parameter>" in f"\n{x}" for x in v.values())]
    content = said + ("\n\n" if said else "") + written(calls)
    expected = [
        (
            name,
            values["input"] if name == "apply_patch" else json.dumps(values, ensure_ascii=False, separators=(",", ":")),
        )
        for name, values in calls
    ]
    size = len(content.encode())
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=6)))
    for places in (cuts, range(1, size)):
        assert stream(PARSER, "", content, places, ended=True, commit=commit) == Joined(
            "", said if calls else content, expected, []
        )


def test_arguments_arrive_piece_by_piece() -> None:
    calls = ToolCallStream(PARSER, commit="argument")
    assert calls.push([Delta("content", "Hi.\n\n<tool_call>\n<function=write")]) == [Delta("content", "Hi.")]
    assert calls.push([Delta("content", ">\n")]) == [CallStart(0, "write", "function")]
    assert calls.push([Delta("content", "<parameter=path>\na/")]) == [
        CallArguments(0, '{"path":"'),
        CallArguments(0, "a/"),
    ]
    assert calls.push([Delta("content", 'b"\n</para')]) == [CallArguments(0, 'b\\"')]
    assert calls.push([Delta("content", "graph")]) == [CallArguments(0, "\\n</paragraph")]
    assert calls.push([Delta("content", "\n</parameter>\n</function>")]) == [CallArguments(0, '"')]
    assert calls.push([Delta("content", "\n</tool_call>")]) == [CallArguments(0, "}"), CallEnd(0)]
    assert calls.finish(ended=True) == []
    assert as_sent(calls.result) == [("write", '{"path":"a/b\\"\\n</paragraph"}')]


def test_a_tool_that_is_not_strict_may_repeat_a_parameter_so_its_arguments_come_whole() -> None:
    calls = ToolCallStream(PARSER, commit="argument")
    content = "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n"
    assert calls.push([Delta("content", content)]) == [CallStart(0, "read", "function")]
    content = "<parameter=path>\nb\n</parameter>\n</function>\n</tool_call>"
    assert calls.push([Delta("content", content)]) == [CallArguments(0, '{"path":"b"}'), CallEnd(0)]


@pytest.mark.parametrize("commit", COMMITS[1:])
def test_a_cut_call_under_enforced_structure_is_withheld(commit: Commit) -> None:
    content = written([("now", {}), ("write", {"path": "a"})])[: -len("\n</function>\n</tool_call>")]
    ways: list[Iterable[int]] = [[], range(1, len(content))]
    for places in ways:
        made = stream(PARSER, "", content, places, ended=False, commit=commit)
        assert (made.content, made.calls) == ("", [("now", "{}")])
        assert made.unfinished == ([] if commit == "call" else [("write", '{"path":"a"')])


@pytest.mark.parametrize("commit", COMMITS)
def test_calls_beyond_the_choice_are_counted_and_dropped(commit: Commit) -> None:
    parser = ToolParser(TOOLS, ToolChoice.auto(parallel=False))
    _, parsed = parse_answer(parser, "", written([("now", {}), ("write", {"path": "a"})]), ended=True, commit=commit)
    assert (as_sent(parsed), parsed.surplus, parsed.text) == ([("now", "{}")], 1, "")


@pytest.mark.parametrize("commit", COMMITS)
def test_tools_that_the_choice_does_not_allow_are_not_called(commit: Commit) -> None:
    content = written([("now", {})])
    for choice in (ToolChoice.none(), ToolChoice.named("read"), ToolChoice.auto(names=["write"])):
        made = stream(ToolParser(TOOLS, choice), "", content, [], ended=True, commit=commit)
        assert (made.content, made.calls) == (content, [])
    assert stream(ToolParser(), "", content, [5], ended=True, commit=commit).content == content


def test_text_is_not_held_longer_than_it_must() -> None:
    calls = ToolCallStream(PARSER)
    for text, sent in [
        ("a", "a"),
        ("\n", ""),
        ("b <", "\nb "),
        ("tool", ""),
        ("box> c", "<toolbox> c"),
        (" <tool_call>", " "),
        (" is", "<tool_call> is"),
        (" `<tool_call>", " `"),
        ("` d\n```\n", "<tool_call>` d\n```"),
        ("<tool_call>", "\n<tool_call>"),
        ("\n<function=now>", "\n<function=now>"),
        ("\n```", "\n```"),
    ]:
        events = calls.push([Delta("content", text)])
        assert "".join(event.text for event in events if isinstance(event, Delta)) == sent
    assert calls.finish(ended=True) == []


def test_long_values_take_linear_time() -> None:
    content = written([("write", {"path": "a", "content": "<parameter=x> `\n" * 4000})])
    for commit in COMMITS:
        calls = ToolCallStream(PARSER, commit=commit)
        events: list[Event] = []
        began = time.process_time()
        for at in range(0, len(content), 4):
            events += calls.push([Delta("content", content[at : at + 4])])
        events += calls.finish(ended=True)
        assert time.process_time() - began < 5
        assert [name for name, _ in joined(events).calls] == ["write"]
