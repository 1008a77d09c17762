"""The loop with a fake model: what a request gets, whatever happens around it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.loop import STEP_FAILED, STOPPED, Arrived, Asked, Broken, Drain, LoopError
from engine.protocol import AskStatistics, Sampling, Statistics, Submit, Thinking, Tokens, pack_ids
from tests.core.harness import Harness, submit
from tests.rounds.fake_model import FakeModel


def counting(**fields: Any) -> Harness:
    return Harness(FakeModel(counting=True), **fields)


def test_an_answer_of_the_length_asked_for() -> None:
    (answer,) = counting().run(submit([10], 5))
    assert answer.tokens == [11, 12, 13, 14, 15]
    assert answer.finish == "length"
    assert answer.last.timings is not None
    assert answer.last.timings.prefill_tokens == 1
    assert [part.finish for part in answer.parts[:-1]] == [None] * 4


def test_no_tokens_asked_for_runs_the_prompt_only() -> None:
    harness = counting()
    (answer,) = harness.run(submit(range(60), 0))
    assert (answer.tokens, answer.finish) == ([], "length")
    assert harness.model.columns == 60
    assert [(p.processed, p.total) for p in answer.progress] == [(0, 60), (60, 60)]


@pytest.mark.parametrize(
    ("length", "limit", "tokens", "finish"),
    [(500, 100, 12, "context"), (500, 12, 12, "length"), (512, 5, 0, "context"), (512, 0, 0, "length")],
)
def test_the_context_bounds_the_answer(length: int, limit: int, tokens: int, finish: str) -> None:
    (answer,) = counting().run(submit([1] * length, limit))
    assert (len(answer.tokens), answer.finish) == (tokens, finish)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 300])
def test_chunks_and_rounds_see_every_token_once(length: int) -> None:
    """The fake model itself refuses a lane whose pages and state disagree."""
    prompt = [i * 7 % 64 for i in range(length)]
    whole = Harness(prefill_chunk=1024).run(submit(prompt, 40))[0]
    chunked = Harness(prefill_chunk=128).run(submit(prompt, 40))[0]
    assert whole.tokens == chunked.tokens
    assert len(whole.tokens) == 40
    assert [p.processed for p in chunked.progress] == [*range(0, length, 128), length]


def test_stop_ids_end_with_the_token() -> None:
    (answer,) = counting().run(submit([10], 50, stop_ids=(14, 60)))
    assert (answer.tokens, answer.finish) == ([11, 12, 13, 14], "stop_id")


def test_stop_strings_straddle_tokens() -> None:
    words = [b"<%d>" % i for i in range(64)]
    stops = (b"never", b"3><14", b"13><1")
    (answer,) = counting(vocabulary=words).run(submit([10], 50, stop_strings=stops))
    assert (answer.tokens, answer.finish, answer.last.stop) == ([11, 12, 13, 14], "stop_string", b"13><1")


def test_a_stop_string_in_the_prompt_is_no_stop() -> None:
    words = [b"%d," % i for i in range(64)]
    (answer,) = counting(vocabulary=words).run(submit([9, 10], 3, stop_strings=(b"10,11",)))
    assert answer.finish == "length"


def seeded(id: int) -> Submit:
    prompt = [(id * 31 + i * 7) % 64 for i in range(3 + 40 * id)]
    return submit(
        prompt, 16, id=id, temperature=0.9, top_p=0.95, presence_penalty=0.5, frequency_penalty=0.2, seed=id * 977
    )


def test_a_seeded_answer_is_the_same_alone_and_among_seven() -> None:
    together = Harness(lanes=8, kv_capacity=4096).run(*(seeded(id) for id in range(8)))
    alone = [Harness(lanes=1, kv_capacity=512).run(seeded(id))[0] for id in range(8)]
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    assert all(len(set(a.tokens)) > 3 for a in alone)


def test_lanes_that_run_together_get_the_same_answers_from_an_exact_model() -> None:
    """The fake model has no order of sums, so here one pass for all lanes changes nothing."""
    together = Harness(lanes=4, kv_capacity=2048, columns_together=True)
    assert [answer.tokens for answer in together.run(*(seeded(id) for id in range(4)))] == [
        Harness(lanes=1, kv_capacity=512).run(seeded(id))[0].tokens for id in range(4)
    ]
    assert together.loop.counters.rounds > together.model.forwards / 3


def test_other_seeds_give_other_answers() -> None:
    first, second = (Harness().run(submit([1, 2], 20, temperature=1.0, seed=seed))[0] for seed in (1, 2))
    assert first.tokens != second.tokens


def test_penalties_make_a_greedy_answer_move_on() -> None:
    (plain,) = Harness().run(submit([1], 30))
    (penalised,) = Harness().run(submit([1], 30, presence_penalty=2.0, frequency_penalty=2.0))
    assert len(set(penalised.tokens)) > len(set(plain.tokens))


def test_log_probabilities_come_with_each_token() -> None:
    (answer,) = counting().run(submit([10], 3, logprobs=4))
    rows = [row for part in answer.parts for row in part.logprobs]
    assert [row.token for row in rows] == answer.tokens
    assert all(len(row.top) == 4 and row.top[0] == (row.token, row.logprob) for row in rows)
    assert all(-1e-3 < row.logprob <= 0 for row in rows)
    assert all(row.top[0][1] > row.top[1][1] >= row.top[2][1] for row in rows)


def test_one_message_a_round_carries_all_lanes_of_a_connection() -> None:
    harness = counting(lanes=3)
    for id, connection in ((1, 1), (2, 1), (3, 2)):
        harness.submit(submit([id], 10, id=id), connection)
    harness.cycle(4)
    harness.sent.clear()
    harness.cycle()
    tokens = [(c, [lane.id for lane in m.lanes]) for c, m in harness.sent if isinstance(m, Tokens)]
    assert tokens == [(1, [1, 2]), (2, [3])]


def test_at_most_one_chunk_between_two_rounds_and_chunks_take_turns() -> None:
    harness = counting(lanes=3, kv_capacity=1536)
    streaming = harness.submit(submit([1], 100, id=1))
    harness.cycle(2)
    long = [harness.submit(submit([5] * 384, 2, id=id)) for id in (2, 3)]
    for _ in range(6):
        before, columns = len(streaming.tokens), harness.model.columns
        harness.cycle()
        assert len(streaming.tokens) == before + 1
        assert harness.model.columns - columns <= 128 + 3
    assert [[p.processed for p in answer.progress] for answer in long] == [[0, 128, 256, 384]] * 2


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_cancel_frees_the_lane_before_the_next_step(how: str) -> None:
    harness = counting(lanes=1)
    gone, waiting = harness.submit(submit([1], 400, id=1)), harness.submit(submit([20], 2, id=2), connection=2)
    harness.cycle(10)
    rounds = len(gone.tokens)
    if how == "cancel":
        harness.cancel(1)
    else:
        harness.close(1)
    harness.cycle()
    assert len(gone.tokens) == rounds
    assert gone.finish == "cancelled"
    assert waiting.tokens == [21]  # its prefill ran in that same cycle
    harness.finish()
    assert harness.loop.counters.cancelled == 1


def test_cancel_during_prefill_stops_after_the_chunk() -> None:
    harness = counting(lanes=1)
    answer = harness.submit(submit([1] * 500, 10))
    harness.cycle(2)
    harness.cancel(1)
    harness.cycle()
    assert harness.model.columns == 256
    assert answer.finish == "cancelled"
    assert answer.last.timings is not None
    assert answer.last.timings.decode == 0


def test_cancel_of_a_waiting_and_of_an_unknown_request() -> None:
    harness = counting(lanes=1)
    harness.submit(submit([1], 50, id=1))
    waiting = harness.submit(submit([1], 50, id=2))
    harness.cycle(2)
    for id in (2, 2, 77):
        harness.cancel(id)
    harness.cycle()
    assert waiting.finish == "cancelled"
    harness.finish()


def test_lanes_and_queue_are_the_whole_capacity() -> None:
    harness = counting(lanes=2, max_pending=3)
    answers = [harness.submit(submit([1], 20, id=id)) for id in range(7)]
    harness.cycle()
    codes = [answer.rejected and answer.rejected.code for answer in answers]
    assert codes == [None] * 5 + ["overloaded"] * 2
    harness.finish()
    assert [answer.finish for answer in answers[:5]] == ["length"] * 5


def test_deadlines_count_only_in_the_queue() -> None:
    harness = counting(lanes=1)
    running = harness.submit(submit([1], 50, id=1, deadline_seconds=0.0))
    late = harness.submit(submit([1], 5, id=2, deadline_seconds=2.5))
    patient = harness.submit(submit([1], 5, id=3))
    harness.cycle()
    harness.now += 2
    harness.cycle()
    assert not late.over
    harness.now += 0.5
    harness.cycle()
    assert late.rejected is not None
    assert (late.rejected.code, "2.5 s" in late.rejected.message) == ("queue_timeout", True)
    harness.now += 400
    harness.finish()
    assert (running.finish, patient.finish) == ("length", "length")
    assert patient.last.timings is not None
    assert patient.last.timings.queue == pytest.approx(402.5)


def test_a_client_that_reuses_a_live_id_is_disconnected() -> None:
    harness = counting()
    first = harness.submit(submit([1], 20, id=5))
    other = harness.submit(submit([2], 20, id=5), connection=2)
    harness.cycle()
    harness.loop.inbox.put(Arrived(harness.read(submit([2], 20, id=5))))
    harness.finish()
    assert (first.finish, other.finish) == ("cancelled", "length")


def test_a_poisoned_lane_fails_alone() -> None:
    harness = Harness(FakeModel(counting=True, poison=33), lanes=3, kv_capacity=1536)
    poisoned, healthy, prompt = harness.run(submit([30], 20, id=1), submit([2], 20, id=2), submit([5, 33, 6], 20, id=3))
    assert (poisoned.tokens, poisoned.finish, poisoned.last.error) == ([31, 32, 33], "error", STEP_FAILED)
    assert healthy.finish == "length"
    assert len(healthy.tokens) == 20
    assert (prompt.tokens, prompt.finish) == ([], "error")
    assert harness.loop.counters.failed == 2


def test_logits_that_are_no_numbers_fail_the_lane() -> None:
    harness = Harness(FakeModel(counting=True, not_a_number=12))
    bad, good = harness.run(submit([10], 20, id=1), submit([20], 20, id=2))
    assert (bad.tokens, bad.finish) == ([11, 12], "error")
    assert good.finish == "length"


def test_three_failures_in_a_row_end_the_loop() -> None:
    harness = Harness(FakeModel(counting=True, poison=33), lanes=1)
    for id in range(4):
        harness.submit(submit([33], 2, id=id))
    with pytest.raises(LoopError, match="3 steps in a row failed"):
        harness.finish()


@pytest.mark.parametrize("between", ["answer", "time"])
def test_failures_far_apart_do_not(between: str) -> None:
    harness = Harness(FakeModel(counting=True, poison=33), lanes=1)
    for id in range(6):
        harness.run(submit([33], 2, id=id))
        if between == "answer":
            harness.run(submit([1], 2, id=100 + id))
        else:
            harness.now += 31
    assert harness.loop.counters.failed == 6


def test_a_dead_socket_thread_ends_the_loop() -> None:
    harness = counting()
    harness.loop.inbox.put(Broken("the socket thread failed"))
    with pytest.raises(LoopError, match="socket thread"):
        harness.cycle()


def test_short_memory_pauses_the_youngest_and_changes_no_answer() -> None:
    asked = [
        submit([(id * 13 + i) % 64 for i in range(30)], 150, id=id, temperature=1.0, seed=id, frequency_penalty=0.3)
        for id in range(4)
    ]
    harness = Harness(lanes=4, max_context=192, kv_capacity=7 * 64, output_reserve=0)
    answers = [harness.submit(message) for message in asked]
    paused = 0
    while not harness.scheduler.idle or not harness.loop.inbox.empty():
        harness.cycle()
        paused = max(paused, len(harness.scheduler.paused))
    assert paused == 2
    roomy = Harness(lanes=4, max_context=192, kv_capacity=12 * 64).run(*asked)
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in roomy]
    assert [len(answer.tokens) for answer in answers] == [150] * 4
    assert [[p.processed for p in answer.progress] for answer in answers] == [[0, 30]] * 4  # a replay is silent


def test_statistics() -> None:
    harness = counting(lanes=1)
    harness.submit(submit([1, 2, 3], 5, id=1))
    harness.submit(submit([1], 5, id=2))
    harness.cycle(3)
    harness.loop.inbox.put(Asked(9, AskStatistics()))
    harness.cycle()
    found = [message for connection, message in harness.sent if connection == 9]
    assert isinstance(found[0], Statistics)
    assert (found[0].running, found[0].waiting, found[0].prefilling) == (1, 1, 0)
    assert (found[0].rounds, found[0].prompt_tokens, found[0].generated_tokens) == (2, 3, 3)
    assert found[0].pages_allocated + found[0].pages_reserved == 1
    assert found[0].pages_capacity == 16
    harness.finish()


def test_drain_lets_running_requests_end() -> None:
    harness = counting(lanes=1)
    running, waiting = harness.submit(submit([1], 5, id=1)), harness.submit(submit([1], 5, id=2))
    harness.cycle()
    harness.loop.inbox.put(Drain())
    late = harness.submit(submit([1], 5, id=3))
    harness.loop.run()
    assert running.finish == "length"
    assert [answer.rejected and answer.rejected.code for answer in (waiting, late)] == ["unavailable", "unavailable"]
    assert [boot.phase for boot in harness.announced] == ["draining"]


@pytest.mark.parametrize("again", [False, True])
def test_drain_is_bounded(again: bool) -> None:
    harness = counting(lanes=1)
    running = harness.submit(submit([1], 500, id=1))
    harness.cycle(3)
    harness.loop.inbox.put(Drain())
    harness.cycle(3)
    assert not running.over
    if again:
        harness.loop.inbox.put(Drain())
    else:
        harness.now += 20
    harness.loop.run()
    assert (running.finish, running.last.error) == ("error", STOPPED)


NUMBERS = st.sampled_from([-1, 0, 1, 2, 7, 20, 21, 2**31, 2**63 - 1, 2**64 - 1, -(2**63)])
REALS = st.sampled_from([-1.0, 0.0, 1e-300, 0.5, 1.0, 2.0, 2.1, 1e308, float("nan"), float("inf"), float("-inf")])
ANYTHING = st.builds(
    Submit,
    id=NUMBERS,
    token_ids=st.binary(max_size=40)
    | st.lists(st.integers(0, 63), max_size=30).map(pack_ids)
    | st.just(pack_ids([1] * 513)),
    sampling=st.builds(
        Sampling,
        temperature=REALS,
        top_p=REALS,
        top_k=NUMBERS,
        min_p=REALS,
        presence_penalty=REALS,
        frequency_penalty=REALS,
        seed=NUMBERS,
    )
    | st.builds(Sampling, temperature=st.sampled_from([0.0, 1e-320, 1.0]), top_p=st.sampled_from([0.0, 1.0])),
    max_tokens=NUMBERS,
    stop_ids=st.lists(NUMBERS, max_size=2).map(tuple),
    stop_strings=st.lists(st.binary(max_size=3), max_size=3).map(tuple),
    logprobs=NUMBERS,
    thinking=st.none()
    | st.builds(
        Thinking, close=st.binary(max_size=2), budget=st.none() | NUMBERS, wrap_up=st.just(pack_ids([0, 1, 2]))
    ),
    deadline_seconds=st.none() | REALS,
    checkpoints=st.lists(NUMBERS, max_size=2).map(tuple),
    constraint=st.none() | st.none() | st.binary(max_size=2),
)
FUZZED = Harness(lanes=2, max_context=64, kv_capacity=128)


@settings(max_examples=250, deadline=None)
@given(ANYTHING, ANYTHING)
def test_absurd_numbers_are_refused_or_answered(first: Submit, second: Submit) -> None:
    for message in (first, second):
        answer = FUZZED.submit(message)
        FUZZED.finish()
        if answer.rejected is None:
            assert answer.finish in ("length", "context", "stop_id", "stop_string")
            assert len(answer.tokens) <= message.max_tokens
        else:
            assert answer.rejected.code in ("invalid", "not_supported", "context_length")
            assert len(answer.rejected.message) > 10
