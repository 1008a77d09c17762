"""The boot state machine: examples of each path, and properties over all histories."""

import dataclasses
import itertools
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance import boot
from appliance.boot import BootState, step
from appliance.policy import Policy
from engine.exits import ExitCode

POLICY = Policy()


def play(
    events: Iterable[boot.Event], policy: Policy = POLICY, every: float = 1.0
) -> tuple[BootState, list[boot.Action]]:
    """Feed events one second apart."""
    state, now = BootState(), 0.0
    actions: list[boot.Action] = []
    for event in events:
        now += every
        state, more = step(state, event, now, POLICY)
        actions += more
    return state, actions


UP_TO_ENGINE: list[boot.Event] = [
    boot.Begin(fetch=True),
    boot.FetchStarted(7),
    boot.FetchProgress("download", 1, 2),
    boot.FetchExited(7, 0),
    boot.Probed(""),
    boot.Planned("fits", {"lanes": 1}),
    boot.EngineStarted(9),
]
UP_TO_PROOF: list[boot.Event] = [
    *UP_TO_ENGINE,
    boot.EngineBoot(9, "load", "weights", 1, 2, "layers"),
    boot.EngineBoot(9, "reserve"),
    boot.EngineBoot(9, "warm-up"),
    boot.EngineBoot(9, "ready"),
]


def test_a_boot_goes_through_every_phase() -> None:
    state = BootState()
    phases: list[str] = []
    actions: list[boot.Action] = []
    for now, event in enumerate([*UP_TO_PROOF, boot.Proved(9, "")]):
        state, more = step(state, event, float(now), POLICY)
        actions += more
        if not phases or phases[-1] != state.phase:
            phases.append(state.phase)
    assert phases == ["fetch", "probe", "plan", "load", "reserve", "warm-up", "prove", "ready"]
    assert actions == [boot.StartFetch(), boot.Probe(), boot.Plan(), boot.StartEngine(), boot.Prove(9)]
    assert state.proven
    assert state.plan == {"lanes": 1}


def test_a_file_needs_no_fetch() -> None:
    state, actions = play([boot.Begin(fetch=False)])
    assert state.phase == "probe"
    assert actions == [boot.Probe()]


def test_the_engines_word_is_not_enough() -> None:
    state, _ = play(UP_TO_PROOF)
    assert state.phase == "prove"
    assert not state.proven


def test_a_failed_proof_kills_the_engine() -> None:
    state, actions = play([*UP_TO_PROOF, boot.ProofFailed(9, "garbage"), boot.EngineExited(9, -1)])
    assert boot.KillEngine("proof failed: garbage") in actions
    assert state.phase == "probe"
    assert "proof failed: garbage" in state.detail
    assert state.restarts == 1


def test_the_engine_comes_back_after_a_crash() -> None:
    events = [*UP_TO_PROOF, boot.Proved(9, ""), boot.EngineExited(9, -1), boot.Tick()]
    state, actions = play(events)
    assert actions[-1] == boot.Probe(), "memory may look different now"
    state, actions = play([*events, boot.Probed(""), boot.Planned("", {}), boot.EngineStarted(10)])
    assert actions[-1] == boot.StartEngine()
    assert (state.engine_pid, state.restarts, state.phase) == (10, 1, "load")


def crash(pid: int, status: int) -> list[boot.Event]:
    return [
        boot.Tick(),
        boot.Probed(""),
        boot.Planned("", {}),
        boot.EngineStarted(pid),
        boot.EngineExited(pid, status, "boom"),
    ]


@pytest.mark.parametrize(("status", "code"), [(1, 3), (3, 3), (-1, 3), (0, 3), (139, 3)])
def test_five_quick_exits_end_the_box(status: int, code: int) -> None:
    events: list[boot.Event] = [boot.Begin(fetch=False), *(e for pid in range(1, 6) for e in crash(pid, status))]
    state, _ = play(events, every=20.0)
    assert (state.phase, state.exit_code) == ("failed", code)
    assert "5 times within 600 s" in state.detail
    assert ("boom" in state.detail) == (status >= 0)
    before, _ = play(events[:-1], every=20.0)
    assert before.exit_code is None


def test_old_exits_do_not_count() -> None:
    state, _ = play([boot.Begin(fetch=False), *(e for pid in range(1, 9) for e in crash(pid, 1))], every=60.0)
    assert state.exit_code is None
    assert state.restarts == 8


@pytest.mark.parametrize("status", [2, 4, 5, 6])
def test_what_cannot_heal_fails_at_once(status: int) -> None:
    state, _ = play([*UP_TO_ENGINE, boot.EngineExited(9, status, "sizes")])
    assert (state.phase, state.exit_code, state.failing) == ("failed", status, "engine")
    assert "sizes" in state.detail


def test_a_failed_box_explains_itself_before_it_ends() -> None:
    events = [*UP_TO_ENGINE, boot.EngineExited(9, 5)]
    state, actions = play([*events, boot.Tick()])
    assert not any(isinstance(action, boot.ShutDown) for action in actions)
    state, actions = play([*events, boot.Tick(), boot.Tick(), boot.Tick()])
    assert actions[-1] == boot.ShutDown(5)
    assert state.phase == "failed"


def test_fetch_is_patient() -> None:
    state, now = BootState(), 0.0
    waits = []
    state, _ = step(state, boot.Begin(fetch=True), now, POLICY)
    for pid in range(1, 30):
        state, _ = step(state, boot.FetchStarted(pid), now, POLICY)
        state, _ = step(state, boot.FetchExited(pid, 1, "no route"), now, POLICY)
        assert state.due is not None
        assert "no route" in state.detail
        waits.append(state.due - now)
        now = state.due
        state, actions = step(state, boot.Tick(), now, POLICY)
        assert actions == (boot.StartFetch(),)
    assert waits[:4] == [1, 2, 4, 8]
    assert max(waits) == POLICY.fetch_backoff_limit


def test_fetch_that_cannot_work_ends_the_box() -> None:
    state, _ = play([boot.Begin(fetch=True), boot.FetchStarted(7), boot.FetchExited(7, 2, "unknown model 'x'")])
    assert (state.phase, state.exit_code) == ("failed", 2)
    assert "unknown model" in state.detail


def test_a_refused_plan_ends_the_box_with_its_code() -> None:
    state, _ = play([boot.Begin(fetch=False), boot.Probed(""), boot.Refused(6, "1 GiB short")])
    assert (state.phase, state.exit_code, state.detail) == ("failed", 6, "1 GiB short")


def test_a_silent_engine_is_killed_and_killed_again() -> None:
    ready, _ = play([*UP_TO_PROOF, boot.Proved(9, "")])
    deadline = boot.next_deadline(ready, POLICY)
    assert deadline == ready.heard + POLICY.silence
    state, actions = step(ready, boot.Tick(), deadline, POLICY)
    assert isinstance(actions[0], boot.KillEngine)
    state, actions = step(state, boot.Tick(), deadline + 1, POLICY)
    assert actions == ()
    _, actions = step(state, boot.Tick(), deadline + POLICY.silence, POLICY)
    assert isinstance(actions[0], boot.KillEngine)


def test_a_word_resets_the_patience() -> None:
    ready, _ = play([*UP_TO_PROOF, boot.Proved(9, "")])
    state, _ = step(ready, boot.EngineAnswered(9), ready.heard + 29, POLICY)
    _, actions = step(state, boot.Tick(), ready.heard + 31, POLICY)
    assert actions == ()


def test_an_engine_that_leaves_is_not_ready() -> None:
    state, _ = play([*UP_TO_PROOF, boot.Proved(9, ""), boot.EngineBoot(9, "failed", "device lost")])
    assert (state.phase, state.proven, state.exit_code) == ("draining", False, None)
    state, _ = step(state, boot.EngineExited(9, 3), 100.0, POLICY)
    assert "device lost" in state.detail


def test_an_api_crash_loop_ends_the_box() -> None:
    state, _ = play([boot.Begin(fetch=False), *[boot.ApiExited(1)] * 5])
    assert (state.phase, state.exit_code, state.failing) == ("failed", 3, "api")
    state, _ = play([boot.Begin(fetch=False), boot.GaveUp("api", "no such file")])
    assert (state.phase, state.exit_code) == ("failed", 3)
    state, _ = play([boot.Begin(fetch=False), boot.ApiExited(2, "bad key file")])
    assert (state.exit_code, state.detail) == (2, "api: status 2, configuration error: bad key file")


def test_the_api_is_started_again_at_once_and_then_slower() -> None:
    state, now = BootState(phase="ready"), 0.0
    for wait in (0, 1, 2, 4):
        state, _ = step(state, boot.ApiExited(1), now, POLICY)
        assert boot.next_deadline(state, POLICY) == now + wait
        now += wait
        state, actions = step(state, boot.Tick(), now, POLICY)
        assert actions == (boot.StartApi(),)


def test_a_new_controller_takes_the_engine_over() -> None:
    state, _ = play([boot.EngineFound(9, {"lanes": 2}, 3), boot.EngineBoot(9, "ready"), boot.Proved(9, "")])
    assert (state.phase, state.restarts, state.plan) == ("ready", 3, {"lanes": 2})


def test_a_stop_keeps_the_reason_of_a_failure() -> None:
    state, _ = play([*UP_TO_ENGINE, boot.EngineExited(9, 5, "bad"), boot.StopRequested()])
    assert state.phase == "failed"
    state, actions = play(
        [*UP_TO_PROOF, boot.Proved(9, ""), boot.StopRequested(), boot.EngineExited(9, 0), boot.Tick()]
    )
    assert state.phase == "draining"
    assert boot.Probe() not in actions[3:]


# Properties

pids = st.integers(1, 3)
statuses = st.sampled_from([0, 1, 2, 3, 4, 5, 6, -1, 127])
phases = st.sampled_from(["load", "reserve", "warm-up", "ready", "draining", "failed", "probe"])
events = st.one_of(
    st.builds(boot.Begin, st.booleans()),
    st.builds(boot.FetchStarted, pids),
    st.builds(boot.FetchProgress, st.just("download"), st.integers(0, 9), st.just(9)),
    st.builds(boot.FetchExited, pids, statuses),
    st.builds(boot.Waiting, st.just("waiting")),
    st.builds(boot.Probed, st.just("")),
    st.builds(boot.Planned, st.just(""), st.just({})),
    st.builds(boot.EngineStarted, pids),
    st.builds(boot.EngineBoot, pids, phases),
    st.builds(boot.EngineAnswered, pids),
    st.builds(boot.EngineExited, pids, statuses),
    st.builds(boot.Proved, pids, st.just("")),
    st.builds(boot.ProofFailed, pids, st.just("x")),
    st.builds(boot.ProofSkipped, pids),
    st.builds(boot.EngineWork, pids, st.booleans(), st.integers(0, 3)),
    st.builds(boot.ApiExited, statuses),
    st.just(boot.Tick()),
)
rare = st.one_of(st.just(boot.StopRequested()), st.builds(boot.Refused, statuses.filter(lambda s: s > 0), st.just("r")))
# Most histories should come far, so a helpful event is as likely as a random one.
helpful = st.sampled_from([*UP_TO_PROOF, boot.Proved(9, ""), boot.EngineExited(9, 1), boot.Tick()])
histories = st.lists(st.tuples(st.one_of(events, helpful, helpful, rare), st.floats(0, 50)), max_size=60)


@given(histories)
def test_never_ready_without_a_proof_of_this_engine(history: list[tuple[boot.Event, float]]) -> None:
    state, now, proved = BootState(), 0.0, None
    for event, wait in history:
        now += wait
        before = state
        state, _ = step(state, event, now, POLICY)
        if isinstance(event, boot.Proved) and before.phase == "prove" and event.pid == before.engine_pid:
            proved = event.pid
        assert state.proven == (state.phase == "ready")
        if state.phase == "ready":
            assert state.engine_pid is not None
            assert state.engine_pid == proved
        if state.engine_pid is None:
            proved = None


@given(histories)
def test_a_failed_box_has_a_code_and_never_starts_anything(history: list[tuple[boot.Event, float]]) -> None:
    state, now, over = BootState(), 0.0, False
    for event, wait in history:
        now += wait
        state, actions = step(state, event, now, POLICY)
        if over:
            assert all(isinstance(action, boot.ShutDown) for action in actions)
        assert (state.phase == "failed") == (state.exit_code is not None)
        assert state.exit_code in (None, 2, 3, 4, 5, 6) or isinstance(event, boot.Refused)
        assert state.exit_code != 0
        over = state.exit_code is not None or state.stopping


@given(st.lists(st.tuples(statuses, st.integers(0, 300)), min_size=1, max_size=12))
def test_restarts_are_bounded_in_number_and_pace(lives: list[tuple[int, int]]) -> None:
    state, now, ends = BootState(), 0.0, list[float]()
    state, _ = step(state, boot.Begin(fetch=False), now, POLICY)
    for pid, (status, life) in enumerate(lives, 1):
        for event in (boot.Probed(""), boot.Planned("", {}), boot.EngineStarted(pid)):
            state, _ = step(state, event, now, POLICY)
        now += life
        state, _ = step(state, boot.EngineExited(pid, status), now, POLICY)
        ends.append(now)
        recent = [end for end in ends if now - end < POLICY.window]
        must_fail = status in boot.UNHEALABLE or len(recent) >= POLICY.exits
        assert (state.exit_code is not None) == must_fail
        if must_fail:
            assert state.exit_code == (status if status in boot.UNHEALABLE else ExitCode.RUNTIME)
            return
        assert state.due is not None
        assert POLICY.backoff <= state.due - now <= POLICY.backoff_limit
        early, actions = step(state, boot.Tick(), now + 0.5 * (state.due - now), POLICY)
        assert actions == ()
        now = state.due
        state, actions = step(early, boot.Tick(), now, POLICY)
        assert actions == (boot.Probe(),)


@given(histories)
@example(
    [
        (boot.Probed(detail=""), 0.0),
        (boot.Planned(detail="", plan={}), 1.1181354020983107),
        (boot.FetchStarted(pid=1), 1.9054739228759736),
        (boot.EngineStarted(pid=1), 5.0),
    ]
)  # a sum that rounds up
def test_a_deadline_always_leads_somewhere(history: list[tuple[boot.Event, float]]) -> None:
    state, now = BootState(), 0.0
    for event, wait in history:
        now += wait
        state, _ = step(state, event, now, POLICY)
    deadline = boot.next_deadline(state, POLICY)
    if deadline is not None:
        after, actions = step(state, boot.Tick(), max(now, deadline), POLICY)
        assert actions, "a Tick at the deadline that does nothing would spin"
        assert after != state


@given(st.integers(1, 10_000), st.floats(0.01, 10), st.floats(10, 1000))
def test_backoff_is_bounded_and_never_shrinks(failures: int, first: float, limit: float) -> None:
    waits = [boot.backoff(n, first, limit) for n in (failures, failures + 1)]
    assert first <= waits[0] <= waits[1] <= limit


def test_the_state_is_a_value() -> None:
    state = BootState()
    step(state, boot.Begin(fetch=True), 1.0, POLICY)
    assert state == BootState()
    assert dataclasses.is_dataclass(state)


# Proofs of an engine that has nothing to do

READY: list[boot.Event] = [*UP_TO_PROOF, boot.Proved(9, "")]
IDLE = boot.EngineWork(9, False, 70)


def idle(state: BootState, now: float, seconds: float, every: float = 7.5) -> tuple[BootState, float, list[float]]:
    """Report idleness for a while; proofs succeed at once. Returns when they began."""
    proofs: list[float] = []
    end = now + seconds
    while now + every <= end:
        now += every
        state, actions = step(state, IDLE, now, POLICY)
        if actions:
            assert actions == (boot.Prove(9),)
            proofs.append(now)
            state, actions = step(state, boot.Proved(9, ""), now, POLICY)
            assert actions == ()
    return state, now, proofs


def test_an_idle_engine_is_proved_every_five_minutes() -> None:
    state, _ = play(READY)
    start = float(len(READY))
    state, now, proofs = idle(state, start, 299)
    assert proofs == []
    state, now, proofs = idle(state, now, 1000)
    assert len(proofs) == 4
    assert proofs[0] - start < POLICY.idle + 10
    assert all(POLICY.idle <= later - sooner < POLICY.idle + 10 for sooner, later in itertools.pairwise(proofs))
    assert state.phase == "ready"


@pytest.mark.parametrize("work", [boot.EngineWork(9, True, 70), boot.EngineWork(9, False, 71)])
def test_work_puts_the_proof_off(work: boot.EngineWork) -> None:
    """Also work that began and ended between two reports: the count has grown."""
    state, now, _ = idle(play(READY)[0], float(len(READY)), 250)
    state, actions = step(state, work, now, POLICY)
    assert actions == ()
    _, _, proofs = idle(dataclasses.replace(state, work_done=70), now, POLICY.idle - 5)
    assert proofs == []


def test_an_idle_engine_with_another_answer_is_replaced() -> None:
    state, now = play(READY)[0], float(len(READY)) + POLICY.idle
    state, _ = step(state, IDLE, now, POLICY)
    assert step(state, IDLE, now + 1000, POLICY)[1] == (), "one proof at a time"
    state, actions = step(state, boot.ProofFailed(9, "the answer changed"), now, POLICY)
    assert actions == (boot.KillEngine("proof failed: the answer changed"),)
    assert (state.phase, state.proven) == ("prove", False)
    state, _ = step(state, boot.EngineExited(9, -1), now, POLICY)
    assert (state.phase, state.restarts, len(state.engine_exits)) == ("probe", 1, 1)
    assert "the answer changed" in state.detail


def test_failed_proofs_end_the_box_like_any_crash_loop() -> None:
    policy = Policy(idle=10.0)
    state, now = step(BootState(), boot.Begin(fetch=False), 0.0, policy)[0], 0.0
    for pid in range(1, policy.exits + 1):
        for event in (
            boot.Tick(), boot.Probed(""), boot.Planned("", {}), boot.EngineStarted(pid), boot.EngineBoot(pid, "ready"),
            boot.Proved(pid, ""),
        ):  # fmt: skip
            state, _ = step(state, event, now, policy)
        now += policy.idle
        state, actions = step(state, boot.EngineWork(pid, False, 0), now, policy)
        assert actions == (boot.Prove(pid),)
        state, _ = step(state, boot.ProofFailed(pid, "garbage"), now, policy)
        state, _ = step(state, boot.EngineExited(pid, -1), now, policy)
        now += policy.backoff_limit
    assert (state.phase, state.exit_code) == ("failed", ExitCode.RUNTIME)
    assert "garbage" in state.detail


def test_a_proof_without_room_says_nothing() -> None:
    state, now = play(READY)[0], float(len(READY)) + POLICY.idle
    state, _ = step(state, IDLE, now, POLICY)
    state, actions = step(state, boot.ProofSkipped(9), now, POLICY)
    assert (actions, state.phase, state.proven, state.idle_since) == ((), "ready", True, now)


reports = st.builds(
    boot.EngineWork, st.just(9), st.sampled_from([False] * 5 + [True]), st.sampled_from([70] * 5 + [71])
)
judgements = st.sampled_from([boot.Proved(9, ""), boot.ProofSkipped(9), boot.Proved(9, ""), boot.ProofFailed(9, "x")])


@given(st.lists(st.tuples(st.one_of(reports, reports, reports, judgements), st.floats(0, 200)), max_size=80))
def test_proofs_are_never_closer_than_the_idle_time(history: list[tuple[boot.Event, float]]) -> None:
    state, now = play(READY)[0], float(len(READY))
    last = now  # a proof began, ended, or there was work
    under_way, done = False, None
    for event, wait in history:
        now += wait
        ready = state.phase == "ready"
        state, actions = step(state, event, now, POLICY)
        proves = [action for action in actions if isinstance(action, boot.Prove)]
        kills = [action for action in actions if isinstance(action, boot.KillEngine)]
        if proves:
            assert ready
            assert not under_way
            assert isinstance(event, boot.EngineWork)
            assert not event.busy
            assert now - last >= POLICY.idle
            under_way, last = True, now
        elif isinstance(event, boot.EngineWork):
            if not under_way and (event.busy or (done is not None and event.done != done)):
                last = now
        elif under_way:
            assert bool(kills) == isinstance(event, boot.ProofFailed)
            under_way, last, done = False, now, None
        else:
            assert not actions
        if isinstance(event, boot.EngineWork) and not under_way:
            done = event.done
        if kills:
            return
