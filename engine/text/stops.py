"""Finding stop strings in a stream, however it is cut (Aho and Corasick, 1975)."""

from collections.abc import Sequence


class Matcher:
    """Searches one stream for several patterns.

    The match that is complete first wins, the longest of those that end together; so the outcome does not depend on
    how the text is cut. Text that could still become a match is held back.

    Attributes:
        matched: the pattern that was found, or None.
        consumed: after a match, how many characters of the last pushed text belong to it or stand before it.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises ValueError: a pattern is empty."""
        if not all(patterns):
            raise ValueError("a pattern is empty")
        self._next: list[dict[str, int]] = [{}]  # trie: node → character → node; node 0 is the root
        self._depth = [0]
        self._match: list[str | None] = [None]  # longest pattern that ends at the node
        for pattern in patterns:
            node = 0
            for character in pattern:
                if character not in self._next[node]:
                    self._next[node][character] = len(self._next)
                    self._next.append({})
                    self._depth.append(self._depth[node] + 1)
                    self._match.append(None)
                node = self._next[node][character]
            self._match[node] = pattern
        # fallback[n]: the longest proper suffix of n's text that is also a node; shorter texts come first.
        self._fallback = [0] * len(self._next)
        queue = list(self._next[0].values())
        for node in queue:
            for character, child in self._next[node].items():
                self._fallback[child] = self._step(self._fallback[node], character)
                self._match[child] = self._match[child] or self._match[self._fallback[child]]
                queue.append(child)
        self._node = 0
        self._held = ""
        self.matched: str | None = None
        self.consumed = 0

    def push(self, text: str) -> str:
        """Take more text and return what is certainly not part of a match. Nothing is returned after a match."""
        if self.matched is not None:
            return ""
        if len(self._next) == 1:
            return text
        node = self._node
        for place, character in enumerate(text):
            node = self._step(node, character)
            pattern = self._match[node]
            if pattern is not None:
                self.matched, self.consumed = pattern, place + 1
                before = self._held + text[: place + 1]
                self._held = ""
                return before.removesuffix(pattern)
        self._node = node
        everything = self._held + text
        keep = len(everything) - self._depth[node]
        self._held = everything[keep:]
        return everything[:keep]

    def finish(self) -> str:
        """Release what was held back: it did not become a match."""
        held, self._held, self._node = self._held, "", 0
        return held

    def _step(self, node: int, character: str) -> int:
        while node and character not in self._next[node]:
            node = self._fallback[node]
        return self._next[node].get(character, 0)
