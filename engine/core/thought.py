"""The thought of a request, as the engine follows it: where it ends, and when it has lasted long enough.

The engine reads no text, so the client says which bytes end the thought and which tokens wrap it up.
"""

from collections.abc import Sequence


def effective_budget(budget: int, limit: int, wrap_up: int) -> int | None:
    """How many tokens a thought may have, None for any number (spec/serving.md §6.3).

    `limit` is the longest answer C, thought included, and `wrap_up` the tokens that would be inserted. With
    R = `wrap_up` + 1: the budget B itself if C ≤ B (it is never reached) or C − B ≥ R, else C − R, so that the wrap-up
    and one token of the answer still fit, else none.
    """
    reserve = wrap_up + 1
    if limit <= budget or limit - budget >= reserve:
        return budget
    return limit - reserve if limit > reserve else None


class Thought:
    """Follows an open thought token by token.

    Attributes:
        open: the closing mark has not come.
        tokens: how many were pushed while it was open, the ones of the mark included.
        rest: bytes of the token that completed the mark, after it.
        wrap_up: tokens that end the thought when the budget is used up.
    """

    def __init__(
        self, close: bytes, vocabulary: Sequence[bytes], *, budget: int | None = None, wrap_up: Sequence[int] = ()
    ) -> None:
        """`close` is the mark that ends the thought, `vocabulary[id]` the bytes of a token."""
        self._close, self._vocabulary, self._budget = close, vocabulary, budget
        self._tail = b""
        self.open = True
        self.tokens = 0
        self.rest = b""
        self.wrap_up = list(wrap_up)

    def push(self, token: int) -> None:
        """Add a token of the answer."""
        if not self.open:
            return
        self.tokens += 1
        window = self._tail + self._vocabulary[token]
        found = window.find(self._close)
        if found >= 0:
            self.open, self.rest = False, window[found + len(self._close) :]
        else:
            self._tail = window[-(len(self._close) - 1) :] if len(self._close) > 1 else b""

    @property
    def exhausted(self) -> bool:
        """It is still open and has used up its budget."""
        return self.open and self._budget is not None and self.tokens >= self._budget
