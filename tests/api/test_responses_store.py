"""The response store: bounds, order of eviction, chains that outlive their parents (spec/serving.md §8.1)."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engine.api.errors import ApiError
from engine.api.responses.store import OVERHEAD, Entry, ResponseStore


def entry(text: str, parent: Entry | None = None) -> Entry:
    return Entry(parent, [{"in": text}], {"output": [{"out": text}]}, preserve=None)


def refusal(work: Callable[[], object]) -> str | None:
    """The code of the error that `work` raises, if it raises one."""
    try:
        work()
    except ApiError as error:
        return error.code
    return None


def missing(store: ResponseStore, identity: str) -> bool:
    code = refusal(lambda: store.get(identity))
    assert code in (None, "response_not_found")
    return code is not None


def test_the_least_recently_used_goes_first() -> None:
    store = ResponseStore(3, 10**6)
    for name in "abc":
        store.put(name, entry(name))
    store.get("a")
    store.put("d", entry("d"))
    assert [missing(store, name) for name in "abcd"] == [False, True, False, False]


def test_bytes_are_bounded_and_exact() -> None:
    one = entry("x" * 1000)
    assert one.size == len(one.input) + len(one.response) + OVERHEAD
    store = ResponseStore(100, 3 * one.size)
    for name in "abcd":
        store.put(name, entry("x" * 1000))
    assert store.bytes == 3 * one.size
    assert missing(store, "a")
    with pytest.raises(ApiError) as caught:
        store.put("e", entry("x" * 9000))
    assert (caught.value.status, caught.value.code) == (500, "response_store_capacity_exceeded")
    assert not missing(store, "d")  # nothing made room for what could not fit


def test_a_child_keeps_what_it_continues() -> None:
    store = ResponseStore(10, 10**6)
    parent = entry("a")
    store.put("a", parent)
    child = entry("b", parent)
    store.put("b", child)
    store.delete("a")
    assert missing(store, "a")
    assert store.bytes == parent.size + child.size
    assert store.get("b").items() == [{"in": "a"}, {"out": "a"}, {"in": "b"}, {"out": "b"}]
    store.delete("b")
    assert store.bytes == 0


def test_a_parent_that_was_evicted_meanwhile_is_counted_again() -> None:
    store = ResponseStore(1, 10**6)
    parent = entry("a")
    store.put("a", parent)
    store.put("other", entry("o"))
    child = entry("b", parent)
    store.put("b", child)
    assert store.bytes == parent.size + child.size
    assert store.get("b").items()[0] == {"in": "a"}


class Chains(RuleBasedStateMachine):
    """Any order of storing, continuing, using and deleting keeps the count of bytes true."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.store = ResponseStore(5, 12 * (OVERHEAD + 60))
        self.number = 0
        self.known: dict[str, Entry] = {}

    @rule(target=held, size=st.integers(1, 900), parent=st.none() | held)
    def put(self, size: int, parent: str | None) -> str:
        self.number += 1
        name = str(self.number)
        made = entry("x" * size, self.known.get(parent or ""))
        code = refusal(lambda: self.store.put(name, made))
        assert code in (None, "response_store_capacity_exceeded")
        if code is None:
            self.known[name] = made
        return name

    @rule(name=held)
    def use(self, name: str) -> None:
        if not missing(self.store, name):
            assert self.store.get(name) is self.known[name]

    @rule(name=consumes(held))
    def delete(self, name: str) -> None:
        if not missing(self.store, name):
            self.store.delete(name)
            assert missing(self.store, name)

    @invariant()
    def counted(self) -> None:
        alive: set[int] = set()
        total = 0
        for stored in self.store._entries.values():
            for one in stored.chain():
                if id(one) not in alive:
                    alive.add(id(one))
                    total += one.size
        assert self.store.bytes == total <= 12 * (OVERHEAD + 60)
        assert len(self.store) <= 5


TestChains: Any = Chains.TestCase
TestChains.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
