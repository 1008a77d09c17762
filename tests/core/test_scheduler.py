"""The scheduler without a model: whatever arrives and leaves, nobody starves and the books add up."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.core.lane import Lane, Request
from engine.core.scheduler import Scheduler
from engine.memory import PAGE_TOKENS, PagePool, StatePool
from engine.protocol import Sampling

CONTEXT = 6 * PAGE_TOKENS
CHUNK = 128


def request(id: int, prompt: int, limit: int, wait: float = 1e9) -> Request:
    return Request(
        connection=1,
        id=id,
        prompt=[0] * prompt,
        sampling=Sampling(),
        limit=limit,
        limit_finish="length",
        wait_seconds=wait,
    )


def run_round(scheduler: Scheduler) -> list[Request]:
    """One round, as the loop does it; the requests that ended."""
    ended = []
    for lane in scheduler.round():
        assert lane.frontier + 1 <= len(lane.account.pages) * PAGE_TOKENS
        lane.frontier += 1
        lane.request.generated.append(0)
        if len(lane.request.generated) >= lane.request.limit:
            ended.append(lane.request)
    for each in ended:
        scheduler.remove(each)
    return ended


def run_chunk(scheduler: Scheduler) -> Lane | None:
    """One chunk, as the loop does it."""
    lane = scheduler.next_prefill()
    if lane is None:
        return None
    length = min(CHUNK, lane.request.target - lane.frontier)
    assert lane.account.cover(lane.frontier + length)
    lane.frontier += length
    if lane.frontier == lane.request.target and not lane.request.generated:
        if lane.request.limit:
            lane.request.generated.append(0)
        if len(lane.request.generated) >= lane.request.limit:
            scheduler.remove(lane.request)
    return lane


class SchedulerMachine(RuleBasedStateMachine):
    """Requests of all sizes on a pool that is too small for the lanes."""

    @initialize(
        lanes=st.integers(1, 8),
        spare=st.integers(0, 8),
        reserve=st.sampled_from([0, 64, 256]),
        pending=st.integers(1, 5),
    )
    def start(self, lanes: int, spare: int, reserve: int, pending: int) -> None:
        pages = max(CONTEXT // PAGE_TOKENS, lanes) + spare
        self.scheduler = Scheduler(PagePool(pages), StatePool(lanes), max_pending=pending, output_reserve=reserve)
        self.order: list[int] = []
        self.now = 0.0
        self.submitted = 0

    @rule(prompt=st.integers(1, CONTEXT), limit=st.integers(0, CONTEXT), wait=st.sampled_from([0.0, 3.0, 1e9]))
    def submit(self, prompt: int, limit: int, wait: float) -> None:
        full = len(self.scheduler.waiting) >= self.scheduler.max_pending
        made = request(self.submitted, prompt, min(limit, CONTEXT - prompt), wait)
        self.submitted += 1
        assert self.scheduler.submit(made, self.now) == (not full)
        self.order += [lane.request.id for lane in self.scheduler.admit(self.now) if not lane.request.generated]

    @rule(rounds=st.integers(1, 40))
    def run_rounds(self, rounds: int) -> None:
        for _ in range(rounds):
            self.cycle()

    def cycle(self) -> None:
        resumed = list(self.scheduler.paused)
        admitted = self.scheduler.admit(self.now)
        back = [lane.request for lane in admitted if lane.request in resumed]
        assert back == resumed[: len(back)]
        run_round(self.scheduler)
        run_chunk(self.scheduler)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        live = list(self.scheduler.requests())
        if live:
            gone = data.draw(st.sampled_from(live))
            self.scheduler.remove(gone)
            assert self.scheduler.find(gone.key) is None

    @rule()
    def expire(self) -> None:
        self.now += 1
        expiry = self.scheduler.next_expiry()
        gone = self.scheduler.expire(self.now)
        assert bool(gone) == (expiry is not None and expiry <= self.now)
        assert all(self.now >= each.arrived + each.wait_seconds for each in gone)

    @invariant()
    def books_and_order(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        scheduler.check()
        tickets = [lane.request.ticket for lane in scheduler.lanes]
        paused = [each.ticket for each in scheduler.paused]
        assert tickets + paused == sorted(set(tickets + paused))  # the paused are the youngest
        assert len({lane.slot for lane in scheduler.lanes}) == len(tickets) == scheduler.states.allocated
        if scheduler.paused or scheduler.waiting:
            scheduler.admit(self.now)
            assert scheduler.lanes, "requests wait and nothing runs"

    def teardown(self) -> None:
        """Everything ends, in bounded time."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(200_000):
            if self.scheduler.idle:
                break
            self.cycle()
        assert self.scheduler.idle
        self.scheduler.check()


SchedulerMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestScheduler = SchedulerMachine.TestCase


def scheduler(lanes: int = 2, pages: int = 12, reserve: int = 0, pending: int = 8) -> Scheduler:
    return Scheduler(PagePool(pages), StatePool(lanes), max_pending=pending, output_reserve=reserve)


def test_a_large_limit_reserves_nothing() -> None:
    made = scheduler(lanes=3, pages=12, reserve=64)
    for id in range(3):
        made.submit(request(id, 64, CONTEXT - 64), 0.0)
    assert len(made.admit(0.0)) == 3
    assert made.pages.reserved == 6


def test_first_in_first_out_even_when_a_later_one_would_fit() -> None:
    made = scheduler(lanes=3, pages=6)
    for id, prompt in enumerate((64 * 4, 64 * 5, 64)):
        made.submit(request(id, prompt, 1), 0.0)
    assert [lane.request.id for lane in made.admit(0.0)] == [0]
    made.remove(made.lanes[0].request)
    assert [lane.request.id for lane in made.admit(0.0)] == [1, 2]


def test_the_youngest_is_paused_and_comes_back_before_the_fresh() -> None:
    made = scheduler(lanes=3, pages=6)
    for id in range(3):
        made.submit(request(id, 2 * 64 - 1, 3 * 64), 0.0)
    assert len(made.admit(0.0)) == 3
    for _ in range(3):
        run_chunk(made)
    made.submit(request(9, 64, 1), 0.0)
    run_round(made)  # column 128 is the last that the pages hold
    assert not made.paused
    run_round(made)
    assert [each.id for each in made.paused] == [2]
    assert [lane.request.id for lane in made.lanes] == [0, 1]
    assert made.admit(0.0) == []
    made.remove(made.lanes[0].request)
    assert [lane.request.id for lane in made.admit(0.0)] == [2, 9]
    resumed = made.lanes[1]
    assert (resumed.frontier, resumed.request.target, resumed.prefilling) == (0, 2 * 64, True)


@pytest.mark.parametrize("lanes", [1, 3])
def test_prefilling_lanes_take_turns(lanes: int) -> None:
    made = scheduler(lanes=lanes, pages=6 * lanes)
    for id in range(lanes):
        made.submit(request(id, CONTEXT - 1, 1), 0.0)
    made.admit(0.0)
    order = []
    while (lane := run_chunk(made)) is not None:
        order.append(lane.request.id)
    assert order == list(range(lanes)) * 3
