"""The corpus of answers with calls, whole and cut at every place (spec/serving.md §6.5, spec/cases.md A2-A4, A8)."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
    return joined(events)


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
    size = len((reasoning + case["output"]).encode()) + 10
    whole = stream(parser, reasoning, case["output"], [], ended=ended)
    assert whole == Joined(thought, parsed.text, as_sent(parsed), [])
    assert whole == stream(parser, reasoning, case["output"], range(1, size), ended=ended)
    for cut in range(1, size):
        assert whole == stream(parser, reasoning, case["output"], [cut], ended=ended), cut


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
            thought, parsed.text, as_sent(parsed), []
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
