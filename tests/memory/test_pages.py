"""Pages and state slots never leak, whatever requests do."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engine.memory import PAGE_TOKENS, AccountingError, PageAccount, PagePool, StatePool, pages_for

CAPACITY = 23


class PoolMachine(RuleBasedStateMachine):
    """Opens, grows and closes accounts at random beside a model that only counts."""

    accounts = Bundle("accounts")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(CAPACITY)
        self.expected: dict[PageAccount, tuple[int, int]] = {}  # leased, reserved

    def free(self) -> int:
        return CAPACITY - sum(leased + reserved for leased, reserved in self.expected.values())

    @rule(target=accounts, reserve=st.integers(0, CAPACITY + 2))
    def open(self, reserve: int) -> PageAccount:
        account = self.pool.open(reserve)
        assert (account is None) == (reserve > self.free())
        if account is None:
            account = self.pool.open(0)
            assert account is not None
            reserve = 0
        self.expected[account] = 0, reserve
        return account

    @rule(account=accounts, tokens=st.integers(0, CAPACITY * PAGE_TOKENS + 1))
    def cover(self, account: PageAccount, tokens: int) -> None:
        if account not in self.expected:  # closed
            assert not account.cover(tokens)
            assert not account.pages
            return
        leased, reserved = self.expected[account]
        missing = max(0, pages_for(tokens) - leased)
        before = list(account.pages)
        covered = account.cover(tokens)
        assert covered == (missing - reserved <= self.free())
        assert account.pages[: len(before)] == before  # tokens stay where they are
        if covered:
            self.expected[account] = leased + missing, max(0, reserved - missing)

    @rule(account=consumes(accounts))
    def close(self, account: PageAccount) -> None:
        account.close()
        account.close()
        self.expected.pop(account, None)

    @invariant()
    def books_add_up(self) -> None:
        self.pool.check()
        leased = sum(pages for pages, _ in self.expected.values())
        assert (self.pool.allocated, self.pool.free) == (leased, self.free())
        for account, (pages, reserved) in self.expected.items():
            assert (len(account.pages), account.reserved) == (pages, reserved)


PoolMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=100, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestPool = PoolMachine.TestCase


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (262_144, 4096)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages


def test_a_lost_page_is_found() -> None:
    pool = PagePool(4)
    account = pool.open(2)
    assert account is not None
    assert account.cover(100)
    account.pages.pop()
    with pytest.raises(AccountingError, match="1 leased and 2 unleased pages of 4"):
        pool.check()


def test_a_request_left_behind_is_found() -> None:
    pool = PagePool(4)
    assert pool.open(1) is not None
    pool.check()
    with pytest.raises(AccountingError, match="no request is alive"):
        pool.check_empty()


def test_state_slots() -> None:
    states = StatePool(2)
    assert [states.take(), states.take(), states.take()] == [0, 1, None]
    states.give_back(0)
    assert (states.allocated, states.free) == (1, 1)
    assert states.take() == 0
    with pytest.raises(AccountingError, match=r"\[0, 1\]"):
        states.check_empty()
    states.give_back(0)
    states.give_back(1)
    states.check_empty()
    with pytest.raises(AccountingError, match="slot 1"):
        states.give_back(1)
