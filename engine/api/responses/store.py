"""Answers kept in memory for later requests: the least recently used go first (spec/serving.md §8.1).

An answer and the input it was given are kept as JSON bytes, so that the bound on bytes is exact. An answer stays in
memory as long as answers that continue it do, although its id may have been deleted or evicted.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec

from engine.api.errors import ApiError

# For ids, dictionary slots and the entry itself.
OVERHEAD = 512


class Entry:
    """One answer: its input items, the response object, and what it continues."""

    def __init__(
        self,
        parent: "Entry | None",
        items: list[dict[str, Any]],
        response: dict[str, Any],
        *,
        preserve: bool | None,
        owner: str | None = None,
    ) -> None:
        self.parent = parent
        self.owner = owner  # name of the key that asked
        self.input = msgspec.json.encode(items)
        self.response = msgspec.json.encode(response)
        self.preserve_thinking = preserve
        self.size = len(self.input) + len(self.response) + OVERHEAD
        self.holders = 0  # ids and continuations

    def input_items(self) -> list[dict[str, Any]]:
        """What its request sent."""
        items: list[dict[str, Any]] = msgspec.json.decode(self.input)
        return items

    def chain(self) -> "list[Entry]":
        """The whole conversation, oldest first."""
        entries = list(self._upwards())
        entries.reverse()
        return entries

    def _upwards(self) -> "Iterator[Entry]":
        entry: Entry | None = self
        while entry is not None:
            yield entry
            entry = entry.parent

    def items(self) -> list[dict[str, Any]]:
        """Input and output items of the whole conversation, oldest first. Slow for large ones."""
        items: list[dict[str, Any]] = []
        for entry in self.chain():
            items += entry.input_items()
            items += msgspec.json.decode(entry.response)["output"]
        return items


class ResponseStore:
    """Entries by response id. `bytes` counts everything that is alive."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._max_records, self._max_bytes = max_records, max_bytes
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, identity: str, param: str = "response_id", *, owner: str | None = None) -> Entry:
        """The entry, which becomes the most recently used. What another key asked for is not there.

        Raises:
            ApiError: `response_not_found`.
        """
        entry = self._entries.get(identity)
        if entry is None or entry.owner != owner:
            raise ApiError(
                404, f"there is no stored response {identity[:100]!r}; it was not stored, was deleted, or made room",
                code="response_not_found", param=param,
            )  # fmt: skip
        self._entries.move_to_end(identity)
        return entry

    def put(self, identity: str, entry: Entry) -> None:
        """Keep an entry and make room for it.

        Raises:
            ApiError: `response_store_capacity_exceeded`, it is larger than the whole store with what it continues.
        """
        if sum(one.size for one in entry.chain()) > self._max_bytes:
            raise ApiError(
                500,
                f"the conversation is larger than the response store ({self._max_bytes // 2**20} MiB,"
                " --response-store-max-mib); send store false",
                kind="server_error",
                code="response_store_capacity_exceeded",
            )
        self._entries[identity] = entry
        self._hold(entry)
        while len(self._entries) > self._max_records or self.bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._release(oldest)

    def delete(self, identity: str, *, owner: str | None = None) -> None:
        """Forget an id.

        Raises:
            ApiError: `response_not_found`.
        """
        self.get(identity, owner=owner)
        self._release(self._entries.pop(identity))

    def _hold(self, entry: Entry) -> None:
        current: Entry | None = entry
        while current is not None:
            current.holders += 1
            if current.holders > 1:
                break  # alive already, and so is what it continues
            self.bytes += current.size
            current = current.parent

    def _release(self, entry: Entry) -> None:
        current: Entry | None = entry
        while current is not None:
            current.holders -= 1
            if current.holders > 0:
                break
            self.bytes -= current.size
            current = current.parent
