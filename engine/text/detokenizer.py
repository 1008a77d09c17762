"""Token ids to text, straight from the byte table, never half a character (spec/model.md §15.1)."""

import codecs
from collections.abc import Sequence


class Detokenizer:
    """Incremental decoding. Pieces concatenate to the decoding of all ids at once.

    Bytes that cannot be UTF-8 become U+FFFD; the beginning of a character waits for its rest, and `finish` replaces
    a beginning whose rest never came.
    """

    def __init__(self, shown: Sequence[bytes]) -> None:
        """`shown[id]` is what a reader sees of the token, empty for control tokens."""
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Text that token `token_id` completes."""
        return self._decoder.decode(self._shown[token_id])

    def finish(self) -> str:
        """U+FFFD if the last character was cut, else nothing."""
        return self._decoder.decode(b"", final=True)
