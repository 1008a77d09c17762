"""KV pages: who holds which, and what is promised to whom.

A page holds 64 token columns of every attention layer. All lanes share one pool. A request opens a `PageAccount` with
a *reservation*, and the reservation turns into *leases* (page ids) as its tokens touch them, so
`allocated + reserved + free = capacity` holds at every moment (spec/memory-and-fit.md §8.3). Pure bookkeeping: no
tensors here.
"""

PAGE_TOKENS = 64


class AccountingError(Exception):
    """The books do not add up: a defect of ours, not of a request."""


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` columns."""
    return -(-tokens // PAGE_TOKENS)


class PageAccount:
    """The pages of one request: `pages[i]` holds its tokens `64·i` to `64·i + 63`; `reserved` more are promised."""

    def __init__(self, pool: "PagePool", reserved: int) -> None:
        self._pool = pool
        self.pages: list[int] = []
        self.reserved = reserved
        self.open = True

    def cover(self, tokens: int) -> bool:
        """Lease pages until the first `tokens` tokens have one; True when they do.

        Reserved pages are used first, then free ones. When the pool is short nothing changes and the answer is False.
        """
        missing = max(0, pages_for(tokens) - len(self.pages))
        if not self.open or missing - self.reserved > self._pool.free:
            return False
        self._pool.lease(self, missing)
        return True

    def close(self) -> None:
        """Give everything back. Closing twice is harmless."""
        if self.open:
            self.open = False
            self._pool.take_back(self)


class PagePool:
    """`capacity` pages with ids 0 to `capacity - 1`."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a pool needs at least one page, got {capacity}")
        self.capacity = capacity
        self.reserved = 0
        self._free_ids = list(range(capacity - 1, -1, -1))
        self._accounts: set[PageAccount] = set()

    @property
    def free(self) -> int:
        """Pages that nobody holds and nobody was promised."""
        return len(self._free_ids) - self.reserved

    @property
    def allocated(self) -> int:
        """Pages leased to requests."""
        return self.capacity - len(self._free_ids)

    def open(self, reserve: int) -> PageAccount | None:
        """A new account with `reserve` pages promised, or None when so many are not free."""
        if reserve < 0:
            raise ValueError(f"cannot reserve {reserve} pages")
        if reserve > self.free:
            return None
        account = PageAccount(self, reserve)
        self.reserved += reserve
        self._accounts.add(account)
        return account

    def lease(self, account: PageAccount, count: int) -> None:
        """Move `count` pages to `account`, out of its reservation while that lasts."""
        promised = min(count, account.reserved)
        account.reserved -= promised
        self.reserved -= promised
        for _ in range(count):
            account.pages.append(self._free_ids.pop())

    def take_back(self, account: PageAccount) -> None:
        """Free the pages and the reservation of a closing account."""
        self._accounts.remove(account)
        self.reserved -= account.reserved
        self._free_ids.extend(reversed(account.pages))
        account.reserved = 0
        account.pages = []

    def check(self) -> None:
        """Count everything again from the accounts.

        Raises:
            AccountingError: a page is lost, held twice, or promised and not there.
        """
        leased = [page for account in self._accounts for page in account.pages]
        promised = sum(account.reserved for account in self._accounts)
        if sorted(leased + self._free_ids) != list(range(self.capacity)):
            raise AccountingError(f"{len(leased)} leased and {len(self._free_ids)} unleased pages of {self.capacity}")
        if promised != self.reserved or self.free < 0:
            raise AccountingError(f"{promised} pages promised, {self.reserved} on the books, {self.free} free")
        if self.allocated + self.reserved + self.free != self.capacity:
            raise AccountingError(f"{self.allocated} + {self.reserved} + {self.free} is not {self.capacity}")

    def check_empty(self) -> None:
        """`check`, and nobody holds anything: what must be true when no request is alive.

        Raises:
            AccountingError: a finished request left pages behind.
        """
        self.check()
        if self._accounts or self.free != self.capacity:
            raise AccountingError(f"{len(self._accounts)} accounts are open and no request is alive")
