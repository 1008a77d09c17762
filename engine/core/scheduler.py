"""Who runs, who waits, who is paused. Pure: no clock, no tensors, no sockets.

The rules, and why nothing can deadlock or fail for want of memory:

* Requests are admitted first in, first out. One is admitted when a state slot is free and the pool can promise its
  prompt and the first `output_reserve` tokens of its answer. A large output limit reserves nothing.
* A lane that outgrows its reservation takes free pages. When there is none, the *youngest* lane is paused: its pages
  and slot are freed, its tokens kept. Later its tokens are prefilled again, and it goes on; nothing is sampled twice.
* Paused requests come back in their original order, before any fresh request.

Hence every paused request is younger than every running one, the oldest is never paused, and, since the pool holds at
least `max_context` tokens, the oldest can always take what it needs by pausing the others. So it ends, and the next is
oldest.
"""

from collections import deque
from collections.abc import Callable, Iterator

from engine.core.lane import Key, Lane, Request
from engine.memory import PagePool, StatePool, pages_for

OUTPUT_RESERVE = 256


class Scheduler:
    """Lanes in ticket order, the queue, and the paused."""

    def __init__(
        self, pages: PagePool, states: StatePool, *, max_pending: int, output_reserve: int = OUTPUT_RESERVE
    ) -> None:
        self.pages, self.states = pages, states
        self.max_pending = max_pending
        self.output_reserve = output_reserve
        self.lanes: list[Lane] = []
        self.waiting: deque[Request] = deque()
        self.paused: list[Request] = []
        self._tickets = 0
        self._last_prefill = -1

    def submit(self, request: Request, now: float) -> bool:
        """Queue a request; False when `max_pending` wait already. `admit` before the next one uses free lanes first."""
        if len(self.waiting) >= self.max_pending:
            return False
        request.arrived = now
        self.waiting.append(request)
        return True

    def admit(self, now: float) -> list[Lane]:
        """Put requests on lanes while they fit, the paused first."""
        admitted: list[Lane] = []
        while self.paused or self.waiting:
            request = self.paused[0] if self.paused else self.waiting[0]
            lane = self._take_lane(request)
            if lane is None:
                break
            if self.paused:
                self.paused.pop(0)
            else:
                self.waiting.popleft()
                request.ticket, request.admitted = self._tickets, now
                self._tickets += 1
            self.lanes.append(lane)
            admitted.append(lane)
        return admitted

    def expire(self, now: float) -> list[Request]:
        """Take out the requests that have waited too long for a lane."""
        late = [request for request in self.waiting if now >= request.arrived + request.wait_seconds]
        for request in late:
            self.waiting.remove(request)
        return late

    def next_expiry(self) -> float | None:
        """When `expire` has something to do."""
        return min((request.arrived + request.wait_seconds for request in self.waiting), default=None)

    def round(self) -> list[Lane]:
        """The lanes of the next round, each with a page for its next column. May pause lanes; see `paused`."""
        for lane in list(self.lanes):
            if lane in self.lanes and not lane.prefilling:
                self.cover(lane, lane.frontier + 1)
        return [lane for lane in self.lanes if not lane.prefilling]

    def cover(self, lane: Lane, columns: int) -> bool:
        """Lease pages for `columns` of a lane. May pause lanes, this one too; False if it did."""
        while lane in self.lanes and not lane.account.cover(columns):
            self._pause(self.lanes[-1])
        return lane in self.lanes

    def next_prefill(self, held: Callable[[Lane], bool] = lambda _: False) -> Lane | None:
        """The lane whose chunk is next, of those not `held`: they take turns in ticket order."""
        prefilling = [lane for lane in self.lanes if lane.prefilling and not held(lane)]
        if not prefilling:
            return None
        lane = next((lane for lane in prefilling if lane.request.ticket > self._last_prefill), prefilling[0])
        self._last_prefill = lane.request.ticket
        return lane

    def find(self, key: Key) -> Request | None:
        """A live request."""
        return next((request for request in self.requests() if request.key == key), None)

    def requests(self) -> Iterator[Request]:
        """Every live request: running, paused, waiting."""
        yield from (lane.request for lane in self.lanes)
        yield from self.paused
        yield from self.waiting

    def remove(self, request: Request) -> None:
        """A request is over, wherever it stands; its lane and pages are free at once."""
        for lane in self.lanes:
            if lane.request is request:
                self._release(lane)
                return
        if request in self.paused:
            self.paused.remove(request)
        else:
            self.waiting.remove(request)

    @property
    def idle(self) -> bool:
        """Nothing to run. Requests that wait without a lane imply a running one."""
        return not self.lanes and not self.paused and not self.waiting

    def check(self) -> None:
        """Verify the books; when idle, that everything is free.

        Raises:
            AccountingError: they do not add up.
        """
        self.pages.check()
        if self.idle:
            self.pages.check_empty()
            self.states.check_empty()

    def _need(self, request: Request) -> int:
        return pages_for(min(request.target + self.output_reserve, request.most_columns))

    def _take_lane(self, request: Request) -> Lane | None:
        if not self.states.free:
            return None
        account = self.pages.open(self._need(request))
        if account is None:
            return None
        slot = self.states.take()
        assert slot is not None
        return Lane(request, slot, account)

    def _pause(self, lane: Lane) -> None:
        self._release(lane)
        self.paused.insert(0, lane.request)  # younger ones were paused before it

    def _release(self, lane: Lane) -> None:
        self.lanes.remove(lane)
        lane.account.close()
        self.states.give_back(lane.slot)
