"""Splits the answer into the reasoning channel and the content (spec/model.md §15.1)."""

from typing import Literal

from engine.text.stops import Matcher

Channel = Literal["reasoning", "content"]

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"

# Qwen's own words for a thought that has used up its budget (spec/model.md, open question 2), and what the model writes
# between a thought and an answer.
WRAP_UP = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
)
AFTER_THOUGHT = "\n\n"


class ChannelSplitter:
    """Text before the first `</think>` is reasoning, if the prompt left a think block open; the rest is content.

    The mark is recognised in the text, so it does not matter whether the model wrote one token or several. White space
    that follows the mark is dropped. With thinking off everything is content, a literal `</think>` too.
    """

    def __init__(self, *, thinking: bool, exact: bool = False) -> None:
        """`thinking`: the prompt ends inside an open think block. `exact`: white space after the mark is content."""
        self.channel: Channel = "reasoning" if thinking else "content"
        self._close = Matcher([THINK_CLOSE])
        self._at_start = thinking and not exact

    def push(self, text: str) -> list[tuple[Channel, str]]:
        """Pieces in order, without empty ones. A possible beginning of the mark is held back."""
        pieces: list[tuple[Channel, str]] = []
        if self.channel == "reasoning":
            reasoning = self._close.push(text)
            if reasoning:
                pieces.append(("reasoning", reasoning))
            if self._close.matched is not None:
                self.channel, text = "content", text[self._close.consumed :]
        if self.channel == "content":
            if self._at_start:
                text = text.lstrip()
                self._at_start = not text
            if text:
                pieces.append(("content", text))
        return pieces

    def finish(self) -> list[tuple[Channel, str]]:
        """What was held back: it did not become the mark."""
        held = self._close.finish()
        return [("reasoning", held)] if held else []
