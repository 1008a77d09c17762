"""Calls in a stream of deltas: text at once, calls when they are certain (spec/serving.md §6.5, spec/cases.md A2-A4).

When a call is certain, and so may be published, is a rule the caller chooses:

`end`: at the end of the output. The only rule for free decoding, since a region counts only if it reads as calls up to
    the end: prose after a closed call turns it into text again.
`call`: when the call is closed. Needs the engine to enforce the structure (see `engine.text.tool_arguments`).
`argument`: the name as soon as it is read, and the arguments of strict tools piece by piece. Needs the same. A call
    that is cut has then begun, and is left without its `CallEnd`; such a call is none.

Should the engine not keep to the structure, `call` and `argument` become `end` as long as nothing is published; later
the rest is text.

Under each rule the joined events are what the parser gives for the whole output, however the deltas are cut.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from engine.text.markdown import skip_lines
from engine.text.reasoning import Channel
from engine.text.stream import Delta
from engine.text.tool_arguments import StructuredCalls
from engine.text.tool_calls import Parsed, Position, ToolParser, before_calls
from engine.text.tool_events import Event, call_events
from engine.text.tool_markup import Fallback

Commit = Literal["end", "call", "argument"]


class _Held:
    """One channel's text from the start of the first line that is not completely sent."""

    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser
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
        certain, opened = self._parser.undecided(self._text, self._position)
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

    def call_text(self) -> str | None:
        """The text from a `<tool_call>` that is certain not to be quoted, if there is one."""
        if self._region is None:
            return None
        self._collect()
        before = self._text[self._text.rfind("\n", 0, self._region) + 1 : self._region]
        if "`" in before and "\n" not in self._text[self._region :]:
            return None
        text = self._text[self._region :]
        return text if text.startswith("<tool_call>") else None

    def finish(self, *, ended: bool) -> tuple[str, Parsed]:
        """The rest of the text, and how the end was read."""
        self._collect()
        parsed = self._parser.parse_rest(self._text, self._position, ended=ended)
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
        self._reasoning = _Held(parser.strict)
        self._content = _Held(parser)
        self._structured: StructuredCalls | None = None
        self._ahead: list[str] = []  # what only the structured reader has, while it could still be wrong
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
                self._push_content(events, delta.text)
        return events

    def finish(self, *, ended: bool) -> list[Event]:
        """The rest. `ended`: the model ended its turn with a stop token of its own. Call once, after the last push."""
        events: list[Event] = []
        if self._thinking:
            if ended:
                text, parsed = self._reasoning.finish(ended=True)
                self.result = parsed if parsed.calls else self.result
            else:
                text = self._reasoning.flush()
            _say(events, "reasoning", text)
            events += call_events(self.result.calls)
        elif self._structured is not None:
            text, withheld = self._structured.rest()
            _say(events, "content", text)
            reason: Fallback = "trailing_content" if text.strip() else "malformed_structure" if withheld else "none"
            self.result = Parsed(
                text=text,
                calls=tuple(self._structured.calls),
                fallback=reason,
                surplus=self._structured.surplus,
                withheld=withheld,
            )
        else:
            text, self.result = self._content.finish(ended=ended)
            _say(events, "content", text)
            events += call_events(self.result.calls)
        return events

    def _push_content(self, events: list[Event], text: str) -> None:
        reader = self._structured
        if reader is None:
            _say(events, "content", self._content.push(text))
            if self._commit == "end" or (begun := self._content.call_text()) is None:
                return
            self._structured = reader = StructuredCalls(self._parser, piecemeal=self._commit == "argument")
            events += reader.push(begun)
        else:
            if not reader.published:
                self._ahead.append(text)
            events += reader.push(text)
        if reader.broken and not reader.published:
            # The structure is not enforced after all, so the rule of free decoding holds.
            self._structured = None
            self._commit = "end"
            _say(events, "content", self._content.push("".join(self._ahead)))


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
