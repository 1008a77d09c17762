"""Stop strings against a search in the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.stops import StopMatcher

VOCABULARY = [b"a", b"b", b"ab", b"ba", b"aab", b"", b"\xc3", b"\xa9", b"abab"]


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=30),
    st.lists(st.sampled_from([b"a", b"ab", b"bab", b"aabb", b"abba", "é".encode(), b"bbbb"]), min_size=1, max_size=4),
)
def test_matches_where_the_first_stop_ends(tokens: list[int], stops: list[bytes]) -> None:
    text = b"".join(VOCABULARY[token] for token in tokens)
    ends = [
        (end, stop) for end in range(len(text) + 1) for stop in sorted(stops, key=len, reverse=True)
        if text[:end].endswith(stop)
    ]  # fmt: skip
    matcher = StopMatcher(stops, VOCABULARY)
    read = 0
    for token in tokens:
        read += len(VOCABULARY[token])
        found = matcher.push(token)
        if ends and ends[0][0] <= read:
            assert found == ends[0][1]
            return
        assert found is None


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher([b"x", b""], VOCABULARY)
