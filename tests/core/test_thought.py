"""A budget for the thought: what is inserted, when, and what it costs (spec/serving.md §6.3, spec/cases.md A11)."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.thought import Thought, effective_budget
from engine.protocol import Thinking, pack_ids
from tests.core.harness import Answer, Harness, submit
from tests.rounds.fake_model import FakeModel

CLOSE, HINT, AFTER = 30, 50, 51
VOCABULARY = [b"w%d " % number for number in range(64)]
VOCABULARY[CLOSE] = b"</think>"
WRAP_UP = [HINT, CLOSE, AFTER]


def thinking(budget: int | None = 16, wrap_up: list[int] = WRAP_UP) -> Thinking:
    return Thinking(close=b"</think>", budget=budget, wrap_up=pack_ids(wrap_up))


def ask(close_at: int, max_tokens: int = 30, harness: Harness | None = None, **fields: Any) -> Answer:
    """The model counts up from the prompt, and so closes the thought with its `close_at`-th token."""
    harness = harness or Harness(FakeModel(counting=True), vocabulary=VOCABULARY)
    fields = {"thinking": thinking()} | fields
    return harness.run(submit([CLOSE - close_at], max_tokens, **fields))[0]


@pytest.mark.parametrize("close_at", [1, 10, 16])
def test_a_thought_that_ends_in_time_is_left_alone(close_at: int) -> None:
    answer = ask(close_at)
    assert answer.tokens == [(CLOSE - close_at + 1 + i) % 64 for i in range(30)]


@pytest.mark.parametrize("close_at", [17, 25])
def test_a_longer_thought_is_wrapped_up_once(close_at: int) -> None:
    answer = ask(close_at)
    begin = CLOSE - close_at + 1
    # The model counts on from the last inserted token, so it has read all of them.
    expected = [*range(begin, begin + 16), *WRAP_UP, *range(AFTER + 1, 64), 0]
    assert answer.tokens == expected[:30]
    assert answer.finish == "length"
    assert len(answer.tokens) == 30  # what is inserted counts


def test_the_mark_may_straddle_tokens() -> None:
    words = list(VOCABULARY)
    words[CLOSE], words[CLOSE + 1] = b"x</thi", b"nk>y"
    answer = ask(15, harness=Harness(FakeModel(counting=True), vocabulary=words), thinking=thinking(wrap_up=[30, 31]))
    assert answer.tokens == [(CLOSE - 14 + i) % 64 for i in range(30)]
    cut = ask(16, harness=Harness(FakeModel(counting=True), vocabulary=words), thinking=thinking(wrap_up=[30, 31]))
    assert cut.tokens[14:19] == [29, 30, 30, 31, 32]  # half a mark does not close it


@pytest.mark.parametrize(
    ("fields", "count", "finish"),
    [
        ({"max_tokens": 16}, 16, "length"),
        ({"max_tokens": 12}, 12, "length"),
        ({"stop_ids": (21,)}, 16, "stop_id"),  # 6 + 15
        ({"stop_strings": (b"w21",)}, 16, "stop_string"),
        ({"stop_strings": (b"w50 </thi",)}, 18, "stop_string"),
        ({"thinking": thinking(None)}, 30, "length"),
    ],
)
def test_an_end_at_the_boundary_wins(fields: dict[str, Any], count: int, finish: str) -> None:
    answer = ask(25, **fields)
    assert (len(answer.tokens), answer.finish) == (count, finish)
    assert HINT not in answer.tokens or finish == "stop_string"


@pytest.mark.parametrize(
    ("budget", "limit", "effective"),
    [(16, 60, 16), (16, 20, 16), (16, 19, 15), (16, 17, 13), (16, 16, 16), (16, 5, 16), (100, 5, 100),
     (2, 4, None), (1, 5, 1)],
)  # fmt: skip
def test_the_budget_that_holds(budget: int, limit: int, effective: int | None) -> None:
    """R = 4: three tokens and one of the answer."""
    assert effective_budget(budget, limit, len(WRAP_UP)) == effective
    answer = ask(29, limit, thinking=thinking(budget))
    inserted = effective is not None and effective < limit
    assert answer.tokens.count(HINT) == inserted
    if inserted:
        assert effective is not None
        assert answer.tokens[effective : effective + 3] == WRAP_UP
    assert (len(answer.tokens), answer.finish) == (limit, "length")


@given(
    st.lists(st.sampled_from([b"<", b"/think>", b"</", b"think>", b"x", b"</think>", b">", b"</think>{"]), max_size=9)
)
def test_the_mark_is_found_however_it_is_cut(words: list[bytes]) -> None:
    thought = Thought(b"</think>", words)
    for token in range(len(words)):
        thought.push(token)
    text = b"".join(words)
    assert thought.open == (b"</think>" not in text)
    if not thought.open:
        seen = b"".join(words[: thought.tokens])
        assert seen.split(b"</think>", 1)[1] == thought.rest
        assert b"</think>" not in b"".join(words[: thought.tokens - 1])


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 25), st.integers(1, 50)), min_size=2, max_size=5))
def test_neighbours_and_pauses_do_not_change_the_answer(asked: list[tuple[int, int, int]]) -> None:
    """A pool so small that lanes are paused while their wrap-up is still to be run; random sampling with penalties."""

    def run(harness: Harness, requests: list[tuple[int, int, int]]) -> list[Answer]:
        return harness.run(
            *(
                submit(
                    [CLOSE - close_at] * 90,
                    limit,
                    id=number,
                    thinking=thinking(budget),
                    temperature=0.8,
                    seed=number,
                    presence_penalty=1.0,
                    frequency_penalty=0.5,
                )
                for number, (close_at, budget, limit) in enumerate(requests)
            )
        )

    def small(lanes: int) -> Harness:
        return Harness(
            FakeModel(), lanes=lanes, max_context=130, kv_capacity=192, output_reserve=1, vocabulary=VOCABULARY
        )

    together = run(small(3), asked)
    alone = run(small(1), asked)
    assert [each.tokens for each in together] == [each.tokens for each in alone]
