"""One answer on its way out: ids → characters → channels → stop strings (spec/model.md §15.1, spec/serving.md §6.7)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from engine.text.detokenizer import Detokenizer
from engine.text.reasoning import Channel, ChannelSplitter
from engine.text.stops import Matcher


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that became certain on one channel; never empty."""

    channel: Channel
    text: str


class Output:
    """Turns the tokens of one request into deltas; the same text results however the tokens are grouped.

    Stop strings are looked for in each channel by itself: they never match across `</think>` nor in the white space
    dropped after it.

    Attributes:
        stopped: the stop string that ended the answer, or None. The match is not part of any delta, and whatever is
            pushed later is ignored.
        tokens: how many tokens were read, the ones of a stop string included.
        reasoning_tokens: how many of them belong to the reasoning, the closing mark included.
    """

    def __init__(
        self, shown: Sequence[bytes], *, thinking: bool, stop_strings: Sequence[str] = (), exact: bool = False
    ) -> None:
        """`shown[id]`: what a reader sees of a token. `exact`: see `ChannelSplitter`.

        Raises:
            ValueError: a stop string is empty.
        """
        self._detokenizer = Detokenizer(shown)
        self._splitter = ChannelSplitter(thinking=thinking, exact=exact)
        self._channel = self._splitter.channel
        self._stops = Matcher(stop_strings)
        self.stopped: str | None = None
        self.tokens = 0
        self.reasoning_tokens = 0

    def push(self, token_ids: Iterable[int]) -> list[Delta]:
        """Take more tokens and return the text that is certain now."""
        pieces: list[tuple[Channel, str]] = []
        for token_id in token_ids:
            if self.stopped is not None:
                break
            self.tokens += 1
            self.reasoning_tokens += self._splitter.channel == "reasoning"
            pieces += self._check(self._splitter.push(self._detokenizer.push(token_id)))
        return _merge(pieces)

    def finish(self) -> list[Delta]:
        """The rest: a cut character, a partial mark, a partial stop string. Call once, after the last token."""
        pieces = self._check(self._splitter.push(self._detokenizer.finish()))
        pieces += self._check(self._splitter.finish())
        if self.stopped is None:
            pieces.append((self._channel, self._stops.finish()))
        return _merge(pieces)

    def _check(self, pieces: Iterable[tuple[Channel, str]]) -> list[tuple[Channel, str]]:
        certain: list[tuple[Channel, str]] = []
        for channel, text in pieces:
            if self.stopped is not None:
                break
            if channel != self._channel:
                certain.append((self._channel, self._stops.finish()))
                self._channel = channel
            certain.append((channel, self._stops.push(text)))
            self.stopped = self._stops.matched
        return certain


def _merge(pieces: Iterable[tuple[Channel, str]]) -> list[Delta]:
    runs = ((channel, "".join(text for _, text in run)) for channel, run in groupby(pieces, key=lambda piece: piece[0]))
    return [Delta(channel, text) for channel, text in runs if text]
