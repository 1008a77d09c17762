"""Answers under a constraint, with the fake model's random logits: whatever it would like to say, the form holds."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.constraint.constraint import grammar, json_object, json_schema, matching, one_of
from engine.constraint.masks import Masks
from engine.constraint.process import Limits
from engine.protocol import Submit, Thinking, pack_ids
from tests.constraint.conftest import LANES
from tests.constraint.schemas import schemas
from tests.constraint.words import CLOSE, COUNT, END, OTHER_END, TOKENS, VOCABULARY, ids, said
from tests.core.harness import Answer, Harness, submit
from tests.rounds.fake_model import FakeModel

STOPS = (END, OTHER_END)


def harness(masks: Masks, **fields: Any) -> Harness:
    sizes: dict[str, Any] = {"lanes": LANES, "kv_capacity": 2048} | fields
    return Harness(FakeModel(token_count=COUNT), vocabulary=TOKENS, masks=masks, **sizes)


def ask(source: bytes, max_tokens: int = 200, *, id: int = 1, seed: int = 0, **fields: Any) -> Submit:
    settings = {"temperature": 1.0, "stop_ids": STOPS, "seed": seed} | fields
    return submit([seed % 64, id % 64], max_tokens, id=id, constraint=source, **settings)


def fits(answer: Answer, *, complete: bool = True) -> str:
    """The text of an answer that ended as its constraint wants."""
    assert answer.rejected is None, answer.rejected
    report = answer.last.constraint
    assert report is not None
    assert answer.finish == ("stop_id" if complete else "length"), answer.last
    assert report.complete == complete
    assert report.mask_upload_bytes == report.mask_positions * 4 * VOCABULARY.words
    return said(answer.tokens)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(schemas(), min_size=1, max_size=4), st.integers(0, 1000), st.booleans())
def test_json_always_fits_its_schema(masks: Masks, asked: list[Any], seed: int, greedy: bool) -> None:
    made = harness(masks)
    temperature = 0.0 if greedy else 1.5
    answers = made.run(
        *(
            ask(json_schema(schema).source(after_thought=False), 400, id=number, seed=seed, temperature=temperature)
            for number, schema in enumerate(asked)
        )
    )
    for schema, answer in zip(asked, answers, strict=True):
        if answer.finish == "length" and not (answer.last.constraint and answer.last.constraint.complete):
            continue  # greedy answers may go round in circles
        value = json.loads(said(answer.tokens))
        jsonschema_rs.validate(schema, value)
        assert said(answer.tokens) == json.dumps(value, ensure_ascii=False, separators=(",", ":")) or _has_numbers(
            value
        )


def _has_numbers(value: Any) -> bool:
    return any(isinstance(each, float) for each in _leaves(value)) or "\\" in json.dumps(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


@pytest.mark.parametrize("seed", range(4))
def test_every_kind(masks: Masks, seed: int) -> None:
    email = r"[a-z]{2,5}@[a-z]{3}\.(com|org)"
    balanced = 'root ::= "(" root ")" | "x" | [0-9]{1,3}'
    texts = [
        fits(answer)
        for answer in harness(masks).run(
            ask(matching(email).source(after_thought=False), id=1, seed=seed),
            ask(one_of(["ja", "jawohl", "nein é"]).source(after_thought=False), id=2, seed=seed),
            ask(grammar(balanced).source(after_thought=False), id=3, seed=seed),
            ask(one_of(["", "x"]).source(after_thought=False), id=4, seed=seed),
        )
    ]
    assert re.fullmatch(email, texts[0])
    assert texts[1] in ("ja", "jawohl", "nein é")
    assert re.fullmatch(r"(\()*(x|\d{1,3})(\))*", texts[2])
    assert texts[2].count("(") == texts[2].count(")")
    assert texts[3] in ("", "x")


def test_an_answer_that_is_cut_says_whether_it_fits(masks: Masks) -> None:
    cut, whole = harness(masks).run(
        ask(matching("a{5}").source(after_thought=False), 3, id=1),
        ask(matching("(ab)+").source(after_thought=False), 4, id=2, stop_ids=(OTHER_END,), logprobs=1),
    )
    assert fits(cut, complete=False) == "aaa"
    assert whole.finish in ("length", "stop_id")
    assert whole.last.constraint is not None
    assert whole.last.constraint.complete
    assert END not in whole.tokens  # it is not one of this request's


def test_constrained_and_free_lanes_do_not_change_each_other(masks: Masks) -> None:
    switches = {"type": "array", "items": {"type": "boolean"}, "maxItems": 9}
    requests = [
        ask(json_schema(switches).source(after_thought=False), id=1),
        submit([9, 9], 60, id=2, temperature=0.9, seed=5),
        ask(matching("[a-f]{30}").source(after_thought=False), id=3, presence_penalty=1.0),
        submit([8] * 150, 60, id=4, temperature=0.9, seed=6, stop_ids=STOPS),
        ask(json_object().source(after_thought=False), 40, id=5),
        submit([7], 60, id=6),
    ]  # fmt: skip
    together = harness(masks).run(*requests)
    alone = [harness(masks).run(request)[0] for request in requests]
    assert [each.tokens for each in together] == [each.tokens for each in alone]
    assert together[1].last.constraint is None


def test_a_paused_lane_goes_on_where_it_was(masks: Masks) -> None:
    def requests() -> list[Submit]:
        return [ask(matching("[a-p ]{100}").source(after_thought=False), id=id, seed=id) for id in range(4)]

    paused = harness(masks, max_context=130, kv_capacity=192, output_reserve=1, lanes=3).run(*requests())
    free = harness(masks).run(*requests())
    assert [fits(each) for each in paused] == [fits(each) for each in free]


# Thinking

WRAP_UP = [*ids("now"), CLOSE]


def thinking(budget: int | None, wrap_up: list[int] = WRAP_UP) -> Thinking:
    return Thinking(close=b"</think>", budget=budget, wrap_up=pack_ids(wrap_up))


@pytest.mark.parametrize("budget", [1, 2, 30])
def test_the_constraint_begins_after_the_thought(masks: Masks, budget: int) -> None:
    (answer,) = harness(masks).run(
        ask(json_schema({"enum": [True, None]}).source(after_thought=True), thinking=thinking(budget), seed=3)
    )
    thought, _, rest = b"".join(TOKENS[token] for token in answer.tokens[:-1]).partition(b"</think>")
    assert rest.lstrip(b"\n") in (b"true", b"null")
    assert len(rest) - len(rest.lstrip(b"\n")) <= 2
    assert thought.endswith(b"now") or answer.tokens.index(CLOSE) < budget
    assert answer.tokens[-1] in STOPS
    assert not set(answer.tokens[:-1]) & set(STOPS)  # it cannot end in its thought
    assert answer.last.constraint is not None
    assert answer.last.constraint.complete


@pytest.mark.parametrize(
    ("closing", "rest", "finish"),
    [(b"</think>", b"", "stop_id"), (b"</think> \n", b"", "stop_id"), (b"</think>a", b"a", "stop_id"),
     (b"</think>x", b"x", "error")],
)  # fmt: skip
def test_a_token_that_ends_the_thought_and_begins_the_answer(
    closing: bytes, rest: bytes, finish: str
) -> None:  # fmt: skip
    """The counting model says token n + 1 after token n."""
    words = [b"%d" % number for number in range(COUNT)]
    words[1], words[2], words[3:6], words[END] = b"t", closing, [b"ab", b"b", b"a"], b"<|im_end|>"
    vocabulary = type(VOCABULARY)(
        tokens=words[:END] + [b"%c" % code for code in range(256)], special=[END - 1], end=END - 1
    )
    made = Masks(vocabulary, 1)
    try:
        loop = Harness(FakeModel(token_count=len(vocabulary.tokens)), vocabulary=vocabulary.tokens, masks=made, lanes=1)
        loop.model.counting = True
        request = submit(
            [0], 20, stop_ids=(END - 1,), constraint=matching("(ab){1,2}").source(after_thought=False),
            thinking=thinking(None),
        )  # fmt: skip
        (answer,) = loop.run(request)
    finally:
        made.stop()
    assert answer.finish == finish, answer.last
    if finish == "error":
        assert answer.last.error_code == "constraint_dead_end"
        assert "does not fit" in answer.last.error
    else:
        text = rest + b"".join(vocabulary.tokens[token] for token in answer.tokens[2:-1])
        assert re.fullmatch(b"(ab){1,2}", text)


# Things that go wrong


def test_cancelled_and_closed(masks: Masks) -> None:
    made = harness(masks)
    endless = matching("a*").source(after_thought=False)
    first = made.submit(ask(endless, 400, id=1, stop_ids=(END,)))
    second = made.submit(ask(matching("ok").source(after_thought=False), id=2))
    other = made.submit(ask(endless, 400, id=3), connection=2)
    while len(first.tokens) < 3 and not first.over:
        made.cycle()
    made.cancel(1)
    made.close(2)
    made.finish()
    assert first.finish in ("cancelled", "stop_id")
    assert fits(second) == "ok"
    assert other.over
    assert made.loop.counters.failed == 0


def test_a_killed_worker_is_replaced_and_nobody_notices() -> None:
    limits = Limits()
    made = Masks(VOCABULARY, 2, limits=limits)
    loop = harness(made, lanes=2)
    try:
        request = ask(matching("[a-z]{60}").source(after_thought=False), seed=7)
        expected = fits(harness(made, lanes=2).run(request)[0])
        answer = loop.submit(request)
        free = loop.submit(submit([5], 100, id=2, temperature=0.5))
        for count in (5, 20):
            while len(answer.tokens) < count:
                loop.cycle()
            pid = made.pid
            assert pid is not None
            time.sleep(0.3)  # until it is at rest: whom it works for when it dies is blamed
            os.kill(pid, signal.SIGKILL)
            end = time.monotonic() + 20
            while made.pid == pid and time.monotonic() < end:
                time.sleep(0.01)
        loop.finish(200_000)
        assert fits(answer) == expected
        assert len(free.tokens) == 100
    finally:
        made.stop()


def test_a_grammar_that_takes_too_long_fails_alone() -> None:
    """No API would have let it pass; the engine's own bounds hold all the same."""
    wide = {
        f"p{i}": {"type": "object", "properties": {f"q{j}": {"type": "string"} for j in range(6)}} for i in range(2000)
    }
    bomb = json_schema({"type": "object", "properties": wide}).source(after_thought=False)
    made = Masks(VOCABULARY, 3, limits=Limits(compile_seconds=0.7))
    loop = harness(made, lanes=3)
    try:
        assert fits(loop.run(ask(matching("ab").source(after_thought=False)))[0]) == "ab"
        slow = loop.submit(ask(bomb, id=2))
        steady = loop.submit(ask(matching("[a-z]{50}").source(after_thought=False), id=3))
        free = loop.submit(submit([5], 100, id=4))
        loop.cycle(40)
        assert len(free.tokens) > 10  # it waits for nobody
        loop.finish(200_000)
        assert (slow.finish, slow.last.error_code) == ("error", "constraint_failed")
        assert "took too long" in slow.last.error
        assert len(fits(steady)) == 50
        assert len(free.tokens) == 100
        assert fits(loop.run(ask(matching("cd").source(after_thought=False), id=5))[0]) == "cd"
        assert loop.loop.counters.failed == 1
    finally:
        made.stop()


def test_a_bad_grammar_fails_its_request(masks: Masks) -> None:
    bad, good = harness(masks).run(ask(b"start: ]", id=1), ask(matching("x").source(after_thought=False), id=2))
    assert (bad.finish, bad.last.error_code) == ("error", "invalid_grammar")
    assert fits(good) == "x"


def test_what_the_intake_refuses(masks: Masks) -> None:
    made = harness(masks)
    for fields, words in (
        ({"source": b""}, "bytes of constraint is 0"),
        ({"source": b"x" * (8 * 1024**2 + 1)}, "bytes of constraint"),
        ({"source": b"x", "stop_ids": ()}, "stop_ids is empty"),
    ):
        answer = made.submit(ask(**fields))
        assert answer.rejected is not None
        assert words in answer.rejected.message
    unable = Harness().submit(submit([1], constraint=b"x", stop_ids=(1,)))
    assert unable.rejected is not None
    assert unable.rejected.code == "not_supported"
