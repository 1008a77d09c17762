"""Stop strings, matched on bytes, because a stop may begin in one token and end in another."""

from collections.abc import Sequence


class StopMatcher:
    """Watches one request's output.

    The match is the stop that ends first in the byte stream, and of several that end together the longest. So the
    result does not depend on how the text was cut into tokens.
    """

    def __init__(self, stops: Sequence[bytes], vocabulary: Sequence[bytes]) -> None:
        if not stops or not all(stops):
            raise ValueError("a stop must not be empty")
        self._stops = tuple(stops)
        self._vocabulary = vocabulary
        self._longest = max(map(len, stops))
        self._tail = b""

    def push(self, token: int) -> bytes | None:
        """Add a token's bytes; the matched stop, if one ends in them. After a match the matcher is spent."""
        before = len(self._tail)
        window = self._tail + self._vocabulary[token]
        matches = [
            (end, -len(stop), stop)
            for stop in self._stops
            # A match that ended before this token would have been reported then.
            if (end := window.find(stop, max(0, before + 1 - len(stop))) + len(stop)) >= len(stop)
        ]
        if matches:
            return min(matches)[2]
        self._tail = window[-(self._longest - 1) :] if self._longest > 1 else b""
        return None
