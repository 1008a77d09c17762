"""Calls in a stream of deltas: text at once, calls when they are certain (spec/serving.md §6.5, spec/cases.md A2-A4).

When a call is certain, and so may be published, is a rule the caller chooses:

`end`: at the end of the output. The only rule for free decoding, since a region counts only if it reads as calls up to
    the end: prose after a closed call turns it into text again.
`call`: when the call is closed. Needs the engine to enforce the structure (see `engine.text.tool_arguments`).
`argument`: the name as soon as it is read, and the arguments of strict tools piece by piece. Needs the same. A call
    that is cut has then begun, and is left without its `CallEnd`; such a call is none.

`call` and `argument` read only the standard form, calls that begin with `<tool_call>`. Should the engine not keep to
the structure, a call that was not published is text, and so is whatever follows one that was. What is left of a call
that was cut is withheld.

Under each rule the joined events are what the parser gives for the whole output, however the deltas are cut.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal

from engine.text.markdown import in_fence, skip_lines, unquoted
from engine.text.reasoning import Channel
from engine.text.stream import Delta
from engine.text.tool_arguments import StructuredCalls
from engine.text.tool_calls import Parsed, Position, ToolParser, before_calls
from engine.text.tool_events import Event, call_events
from engine.text.tool_markup import Fallback

_BLOCK = re.compile("<tool_call>")

Commit = Literal["end", "call", "argument"]


_Decide = Callable[[str, Position], tuple[int, bool]]


def _first_block(text: str, position: Position, *, final: bool = False) -> tuple[int, bool]:
    """Like `ToolParser.undecided`, where any `<tool_call>` that is certain to stand outside of code begins a call."""
    for start, certain in unquoted(text, _BLOCK, position.fence, final=final):
        if start >= position.skip:
            return start, certain
    last = text.rfind("<")
    may_begin = last >= position.skip and _BLOCK.pattern.startswith(text[last:])
    return (last if may_begin and not in_fence(text[:last], position.fence) else len(text)), False


class _Held:
    """One channel's text from the start of the first line that is not completely sent."""

    def __init__(self, decide: _Decide) -> None:
        self._decide = decide
        self._position = Position()
        self._text = ""
        self._more: list[str] = []  # text that was not looked at yet
        self._unread = 0  # its length
        self._patience = 0  # how much of it to collect while a region is open
        self._sent = 0  # of the text
        self._region: int | None = None

    def push(self, text: str) -> str:
        """Take more and return what is certainly not part of a call."""
        self._more.append(text)
        self._unread += len(text)
        if self._unread < self._patience:
            return ""
        self._collect()
        certain, opened = self._decide(self._text, self._position)
        self._region = certain if opened else None
        # Reading a growing region again at every push would take quadratic time.
        self._patience = (len(self._text) - certain) // 4 if opened else 0
        piece = self._send(before_calls(self._text[:certain], started=self._position.started))
        start, self._position.fence = skip_lines(self._text, self._sent, self._position.fence)
        if start:
            self._text = self._text[start:]
            self._sent -= start
            self._position.skip = max(0, self._position.skip - start)
            self._region = None if self._region is None else self._region - start
        return piece

    def begun(self, *, final: bool) -> str | None:
        """Under enforced structure: the text from the first `<tool_call>`, once it is certain to begin a call."""
        self._collect()
        if final:
            start, opened = _first_block(self._text, self._position, final=True)
            self._region = start if opened else None
        return None if self._region is None else self._text[self._region :]

    def give_up(self) -> None:
        """The opener that stands undecided begins no call."""
        if self._region is not None:
            self._position.skip = self._region + 1
        self._patience = 0

    def finish(self, parser: ToolParser, *, ended: bool) -> tuple[str, Parsed]:
        """The rest of the text, and how `parser` reads the end."""
        self._collect()
        parsed = parser.parse_rest(self._text, self._position, ended=ended)
        return self._send(parsed.text), parsed

    def flush(self) -> str:
        """The rest of the text; no call is in it."""
        self._collect()
        return self._send(self._text)

    def _collect(self) -> None:
        self._text += "".join(self._more)
        self._more.clear()
        self._unread = 0

    def _send(self, upto: str) -> str:
        piece = upto[self._sent :]
        self._sent += len(piece)
        self._position.started = self._position.started or bool(piece.strip())
        return piece


class ToolCallStream:
    """Turns the deltas of one answer into text deltas and calls.

    Calls that the model wrote inside a think block it never closed are calls too, if it ended its turn with them and
    had published no content (spec/cases.md A2); their markup is in no channel.

    Attributes:
        result: how the content was read, or the reasoning if calls were found there; after `finish`. Its `text` is
            only what `finish` returned.
    """

    def __init__(self, parser: ToolParser, *, commit: Commit = "end") -> None:
        self._parser = parser
        self._commit = commit
        self._thinking = True
        self._reasoning = _Held(parser.strict.undecided)
        self._content = _Held(parser.undecided) if commit == "end" else _Held(_first_block)
        self._reader: StructuredCalls | None = None
        self._ahead: list[str] = []  # what only the reader has, while it may still give up
        self.result = Parsed(text="")

    def push(self, deltas: Iterable[Delta]) -> list[Event]:
        """Take more of the answer."""
        events: list[Event] = []
        for delta in deltas:
            if not self._parser.callable:
                events.append(delta)
            elif delta.channel == "reasoning":
                _say(events, "reasoning", self._reasoning.push(delta.text))
            else:
                if self._thinking:
                    self._thinking = False
                    _say(events, "reasoning", self._reasoning.flush())
                if self._commit == "end":
                    _say(events, "content", self._content.push(delta.text))
                else:
                    self._push_structured(events, delta.text)
        return events

    def finish(self, *, ended: bool) -> list[Event]:
        """The rest. `ended`: the model ended its turn with a stop token of its own. Call once, after the last push."""
        events: list[Event] = []
        if self._thinking:
            if ended:
                text, parsed = self._reasoning.finish(self._parser.strict, ended=True)
                self.result = parsed if parsed.calls else self.result
            else:
                text = self._reasoning.flush()
            _say(events, "reasoning", text)
            events += call_events(self.result.calls)
        elif self._commit == "end" or not self._parser.callable:
            text, self.result = self._content.finish(self._parser, ended=ended)
            _say(events, "content", text)
            events += call_events(self.result.calls)
        else:
            self._push_structured(events, "", final=True)
            text, withheld = (self._content.flush(), "") if self._reader is None else self._reader.rest()
            _say(events, "content", text)
            calls = self._reader.calls if self._reader else []
            broken = self._reader is not None and text.strip()
            reason: Fallback = "trailing_content" if broken else "malformed_structure" if withheld else "none"
            surplus = self._reader.surplus if self._reader else 0
            self.result = Parsed(text=text, calls=tuple(calls), fallback=reason, surplus=surplus, withheld=withheld)
        return events

    def _push_structured(self, events: list[Event], text: str, *, final: bool = False) -> None:
        while True:
            if self._reader is None:
                _say(events, "content", self._content.push(text))
                begun = self._content.begun(final=final)
                if begun is None:
                    return
                self._reader = StructuredCalls(self._parser, piecemeal=self._commit == "argument")
                events += self._reader.push(begun)
            else:
                if not self._reader.published:
                    self._ahead.append(text)
                events += self._reader.push(text)
            if self._reader.published or not self._reader.broken:
                return
            self._reader = None
            self._content.give_up()
            text = "".join(self._ahead)
            self._ahead.clear()


def _say(events: list[Event], channel: Channel, text: str) -> None:
    if text:
        events.append(Delta(channel, text))


def parse_answer(
    parser: ToolParser, reasoning: str, content: str, *, ended: bool, commit: Commit = "end"
) -> tuple[str, Parsed]:
    """Reasoning and content of a whole answer: the reasoning to publish, and what was read.

    The calls of an unclosed think block are looked for when there is no content at all.
    """
    if commit != "end":
        stream = ToolCallStream(parser, commit=commit)
        deltas = [Delta("reasoning", reasoning), Delta("content", content)]
        events = stream.push([delta for delta in deltas if delta.text])
        events += stream.finish(ended=ended)
        said = {"reasoning": "", "content": ""}
        for event in events:
            if isinstance(event, Delta):
                said[event.channel] += event.text
        return said["reasoning"], replace(stream.result, text=said["content"])
    if content or not ended:
        return reasoning, parser.parse(content, ended=ended)
    thought = parser.strict.parse(reasoning)
    return (thought.text, replace(thought, text="")) if thought.calls else (reasoning, Parsed(text=""))
