"""Tokens to deltas: characters, channels and stop strings, however the tokens are cut (spec/model.md §15.1)."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.text import Delta, Frontend, Output
from engine.text.stops import Matcher

BYTES = [bytes([byte]) for byte in range(256)]
TOKENIZER = Path(__file__).parents[2] / "etc" / "nano" / "tokenizer.json"


@pytest.fixture(scope="session")
def library() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


def _run(data: bytes, cuts: Sequence[int], *, thinking: bool = False, stops: Sequence[str] = ()) -> list[Delta]:
    """Push `data` byte by byte as tokens, in groups that end at `cuts`."""
    output = Output(BYTES, thinking=thinking, stop_strings=stops)
    deltas: list[Delta] = []
    edges = [0, *sorted(cuts), len(data)]
    for begin, end in pairwise(edges):
        deltas += output.push(data[begin:end])
    return deltas + output.finish()


def _text(deltas: Sequence[Delta], channel: str) -> str:
    return "".join(delta.text for delta in deltas if delta.channel == channel)


def _both(deltas: Sequence[Delta]) -> tuple[str, str]:
    return _text(deltas, "reasoning"), _text(deltas, "content")


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_any_bytes_cut_anywhere_decode_as_one(data: bytes, cuts: list[int]) -> None:
    deltas = _run(data, [min(cut, len(data)) for cut in cuts])
    assert _text(deltas, "content") == data.decode(errors="replace")
    assert all(delta.text for delta in deltas)


@given(st.lists(st.integers(0, 8191), max_size=30))
def test_agrees_with_the_library(frontend: Frontend, library: Tokenizer, token_ids: list[int]) -> None:
    known = [token_id for token_id in token_ids if token_id < library.get_vocab_size()]
    output = frontend.output(thinking=False)
    deltas = [delta for token_id in known for delta in output.push([token_id])] + output.finish()
    assert _text(deltas, "content") == library.decode(known, skip_special_tokens=True)


def test_never_half_a_character() -> None:
    text = "你好 🌍 é"
    output = Output(BYTES, thinking=False)
    deltas = [output.push([byte]) for byte in text.encode()]
    assert [delta.text for group in deltas for delta in group] == list(text)
    assert output.finish() == []


def test_end_in_the_middle_of_a_character() -> None:
    output = Output(BYTES, thinking=False)
    assert _both(output.push("a🌍".encode()[:-1])) == ("", "a")
    assert output.finish() == [Delta("content", "�")]


def _expected_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """By definition: the match that ends first, the longest of those ending together."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


@given(
    st.text("abé", max_size=14),
    st.lists(st.text("abé", min_size=1, max_size=4), max_size=4),
    st.lists(st.integers(0, 14), max_size=5),
)
@example("aab", ["ab"], [1, 2])
@example("abcd", ["bcd", "c"], [])
def test_stops_at_every_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = Matcher(stops)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    emitted = "".join(matcher.push(text[a:b]) for a, b in pairwise(edges)) + matcher.finish()
    assert (emitted, matcher.matched) == _expected_stop(text, stops)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_no_more_is_held_back_than_a_stop_needs(text: str, stops: list[str]) -> None:
    matcher = Matcher(stops)
    emitted = matcher.push(text)
    if matcher.matched is None:
        held = text[len(emitted) :]
        prefixes = {stop[:size] for stop in stops for size in range(1, len(stop))}
        assert held == "" or held in prefixes
        assert not any(text.endswith(prefix) for prefix in prefixes if len(prefix) > len(held))


def test_stop_that_straddles_tokens_never_leaks() -> None:
    output = Output([b"one", b" ST", b"OP", b" two"], thinking=False, stop_strings=["STOP"])
    assert output.push([0]) == [Delta("content", "one")]
    assert output.push([1]) == [Delta("content", " ")]
    assert output.push([2]) == []
    assert output.stopped == "STOP"
    assert output.push([3]) == []
    assert output.finish() == []
    assert output.tokens == 3


def test_unfinished_stop_is_text() -> None:
    output = Output([b"one", b" ST"], thinking=False, stop_strings=["STOP"])
    assert _both([*output.push([0, 1]), *output.finish()]) == ("", "one ST")
    assert output.stopped is None


def test_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        Output(BYTES, thinking=False, stop_strings=[""])


@pytest.mark.parametrize(
    ("text", "thinking", "stops", "expected", "stopped"),
    [
        ("why\n</think>\n\nyes", True, [], ("why\n", "yes"), None),
        ("why</think>  a </think> b", True, [], ("why", "a </think> b"), None),
        ("no end </thin", True, [], ("no end </thin", ""), None),
        ("</think>", True, [], ("", ""), None),
        ("</think> \n ", True, [], ("", ""), None),
        ("<</think>x", True, [], ("<", "x"), None),
        ("plain </think> text", False, [], ("", "plain </think> text"), None),
        ("  leading stays", False, [], ("", "  leading stays"), None),
        ("ab</think>c", True, ["b"], ("a", ""), "b"),
        ("ab</think>cd", True, ["d"], ("ab", "c"), "d"),
        ("ab</think>\n\ncd\n\ne", True, ["\n\n"], ("ab", "cd"), "\n\n"),
        ("a\n</think>\nb", True, ["\n\n"], ("a\n", "b"), None),
        ("ab</think>cd", True, ["bc"], ("ab", "cd"), None),
        ("ab</think>cd", True, ["think"], ("ab", "cd"), None),
        ("a🌍b", False, ["🌍"], ("", "a"), "🌍"),
    ],
)
def test_channels(text: str, thinking: bool, stops: list[str], expected: tuple[str, str], stopped: str | None) -> None:
    data = text.encode()
    for cuts in ([], range(len(data)), *([cut] for cut in range(len(data)))):
        assert _both(_run(data, list(cuts), thinking=thinking, stops=stops)) == expected
    output = Output(BYTES, thinking=thinking, stop_strings=stops)
    output.push(data)
    output.finish()
    assert output.stopped == stopped


@given(
    st.lists(st.sampled_from(["a", "b", "<", "</think>", "</thi", " ", "\n", "é", "🌍"]), max_size=8),
    st.lists(st.sampled_from(["a", "ab", "\n", "</", "🌍a", "k>"]), max_size=2),
    st.booleans(),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_grouping_does_not_matter(words: list[str], stops: list[str], thinking: bool, cuts: list[int]) -> None:
    data = "".join(words).encode()
    cut = _run(data, [min(place, len(data)) for place in cuts], thinking=thinking, stops=stops)
    assert _both(cut) == _both(_run(data, [], thinking=thinking, stops=stops))


def test_reasoning_tokens_include_the_mark(frontend: Frontend) -> None:
    close = frontend.vocabulary.index(b"</think>")
    one, output = frontend.encode("a"), frontend.output(thinking=True)
    output.push([*one, *one, close, *one])
    assert (output.reasoning_tokens, output.tokens) == (3, 4)


def test_control_tokens_are_not_shown(frontend: Frontend) -> None:
    by_text = {bytes_: token_id for token_id, bytes_ in enumerate(frontend.vocabulary)}
    names = (b"<|im_end|>", b"<|endoftext|>", b"<|image_pad|>", b"<tts_pad>")
    shown = (b"<tool_call>", b"</tool_response>", b"<think>")
    output = frontend.output(thinking=False)
    deltas = output.push([by_text[name] for name in (*names, *shown)])
    assert _text(deltas, "content") == "<tool_call></tool_response><think>"


def test_a_long_answer_at_once_is_quick() -> None:
    output = Output(BYTES, thinking=True, stop_strings=["abababababab!", "xyz"])
    deltas = output.push(b"ab" * 100_000 + b"</think>" + b"ab" * 100_000)
    assert [len(delta.text) for delta in [*deltas, *output.finish()]] == [200_000, 200_000 - 12, 12]
