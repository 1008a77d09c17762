"""Calls that are certain before the output ends, because the engine enforces their structure (spec/serving.md §6.5).

The language that the constraint must enforce once `<tool_call>` begins outside of code, white space being free between
the tags:

    ( <tool_call> <function=NAME> ( <parameter=KEY> "\\n" VALUE "\\n</parameter>" )* </function> </tool_call> )* end

with NAME a callable tool and no "\\n</parameter>" in VALUE. A strict tool repeats no parameter. An output of this
language can only be cut; it never turns into text again.
"""

import re
from dataclasses import dataclass, field
from typing import Literal

from engine.text.tool_calls import Call, ToolParser
from engine.text.tool_events import CallArguments, CallEnd, CallEvent, CallStart, call_events
from engine.text.tool_markup import RawCall
from engine.text.tool_values import OMITTED, allowed_types, read_value, write_json
from engine.text.tools import CUSTOM_INPUT, Tool

_FUNCTION = re.compile(r"<function=([A-Za-z0-9_-]{1,256})>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,256})>")
_CLOSER = "\n</parameter>"
_LONGEST_TAG = 300


@dataclass(slots=True)
class _Open:
    """The call that is being read."""

    tool: Tool
    piecemeal: bool
    parameters: list[tuple[str, str]] = field(default_factory=list)
    key: str | None = None  # of the value that is being read
    written: bool = False  # the JSON object has a member
    begun: bool = False  # the string value that is being read was opened in the JSON text
    read: list[str] = field(default_factory=list)  # its pieces


class StructuredCalls:
    """Reads the calls from the first `<tool_call>` on.

    Attributes:
        calls: the complete ones that the choice allows.
        surplus: how many complete ones it does not.
        published: an event was returned, so nothing can be taken back.
        broken: the text left the language; it is not read any further.
    """

    def __init__(self, parser: ToolParser, *, piecemeal: bool) -> None:
        """`piecemeal`: a name as soon as it is read, and the arguments of strict and custom tools as they arrive."""
        self._parser = parser
        self._piecemeal = piecemeal
        self._text = ""  # not read yet
        self._since: list[str] = []  # everything after the last complete call
        self._searched = 0  # so much of the text holds no closer of a value
        self._state: Literal["between", "function", "parameters", "value", "closing"] = "between"
        self._open: _Open | None = None
        self.calls: list[Call] = []
        self.surplus = 0
        self.published = False
        self.broken = False

    def push(self, text: str) -> list[CallEvent]:
        """Take more text and return what became certain."""
        self._since.append(text)
        self._text += text
        events: list[CallEvent] = []
        while not self.broken and self._step(events):
            pass
        self.published = self.published or bool(events)
        return events

    def rest(self) -> tuple[str, str]:
        """After the last push: what is text after all, and what is withheld as part of a cut call."""
        since = "".join(self._since)
        if not self.broken:
            return "", since.lstrip()
        begun = self._piecemeal and self._open is not None
        return (self._text, since.removesuffix(self._text)) if begun else (since, "")

    def _step(self, events: list[CallEvent]) -> bool:
        """Read one tag or value. False: more text is needed, or it left the language."""
        if self._state == "value":
            return self._value(events)
        self._text = self._text.lstrip()
        if self._state == "between":
            return self._tag("<tool_call>", "function")
        if self._state == "function":
            return self._function(events)
        if self._state == "closing":
            if self._tag("</tool_call>", "between"):
                self._end(events)
                return True
            return False
        if self._text.startswith("</"):
            return self._tag("</function>", "closing")
        return self._parameter()

    def _tag(self, tag: str, state: Literal["function", "between", "closing"]) -> bool:
        if self._text.startswith(tag):
            self._text = self._text.removeprefix(tag)
            self._state = state
            return True
        self.broken = not tag.startswith(self._text)
        return False

    def _named(self, pattern: re.Pattern[str], beginning: str) -> str | None:
        found = pattern.match(self._text)
        if found is None:
            begins = self._text.startswith(beginning) or beginning.startswith(self._text)
            ended = re.search(r"[<>\n]", self._text[1:]) is not None or len(self._text) > _LONGEST_TAG
            self.broken = ended or not begins
            return None
        self._text = self._text[found.end() :]
        return found[1]

    def _function(self, events: list[CallEvent]) -> bool:
        name = self._named(_FUNCTION, "<function=")
        if name is None:
            return False
        tool = self._parser.callable.get(name)
        if tool is None:
            self.broken = True
            return False
        self._open = _Open(tool, self._piecemeal and tool.strict and self._allowed)
        if self._piecemeal and self._allowed:
            events.append(CallStart(len(self.calls), name, tool.kind))
        self._state = "parameters"
        return True

    @property
    def _allowed(self) -> bool:
        return self._parser.maximum is None or len(self.calls) < self._parser.maximum

    def _parameter(self) -> bool:
        # `_text` may be empty or a "<" that begins either tag.
        if self._open is None or len(self._text) < 2:
            self.broken = not "<".startswith(self._text)
            return False
        key = self._named(_PARAMETER, "<parameter=")
        if key is None:
            return False
        key = key.strip()
        if self._open.piecemeal and any(key == known for known, _ in self._open.parameters):
            self.broken = True  # its first value is already published
            return False
        self._open.key = key
        self._open.begun = False
        self._state = "value"
        return True

    def _value(self, events: list[CallEvent]) -> bool:
        call = self._open
        if call is None or call.key is None:
            return False
        types = allowed_types(call.tool.schema, call.key)
        streamed = call.piecemeal and types is not None and "string" in types
        if streamed and not call.begun:
            if not self._text.startswith(_CLOSER):
                if _CLOSER.startswith(self._text):
                    return False  # its newline is framing, or already the closer of an empty value
                self._text = self._text.removeprefix("\n")
            call.begun = True
            call.read = []
            self._say(events, call, self._opening(call) + '"')
        close = self._text.find(_CLOSER, max(0, self._searched - len(_CLOSER)))
        if close < 0:
            self._searched = len(self._text)
            if streamed:
                certain = len(self._text) - _overlap(self._text)
                self._say_string(events, call, self._text[:certain])
                self._text = self._text[certain:]
                self._searched = 0
            return False
        raw = self._text[:close]
        self._text = self._text[close + len(_CLOSER) :]
        self._searched = 0
        if streamed:
            self._say_string(events, call, raw)
            self._say(events, call, '"')
            raw = "".join(call.read)
        else:
            raw = raw.removeprefix("\n")
            value = read_value(raw, types)
            if call.piecemeal and value is not OMITTED:
                self._say(events, call, self._opening(call) + write_json(value))
        call.parameters.append((call.key, raw))
        self._state = "parameters"
        return True

    def _end(self, events: list[CallEvent]) -> None:
        if self._open is None:
            return
        call = self._parser.call(RawCall(self._open.tool.name, tuple(self._open.parameters)))
        if not self._allowed:
            self.surplus += 1
        elif self._piecemeal:
            if self._open.piecemeal:
                self._say(events, self._open, "}" if self._open.written else "{}")
            elif call.arguments:
                events.append(CallArguments(len(self.calls), call.arguments))
            events.append(CallEnd(len(self.calls)))
            self.calls.append(call)
        else:
            events += call_events([call], len(self.calls))
            self.calls.append(call)
        self._open = None
        self._since = [self._text]

    def _opening(self, call: _Open) -> str:
        """JSON before the next value."""
        before = "," if call.written else "{"
        call.written = True
        return before + write_json(call.key) + ":"

    def _say_string(self, events: list[CallEvent], call: _Open, text: str) -> None:
        call.read.append(text)
        if call.tool.kind == "custom":
            if text and call.key == CUSTOM_INPUT:
                events.append(CallArguments(len(self.calls), text))
        else:
            self._say(events, call, write_json(text)[1:-1])

    def _say(self, events: list[CallEvent], call: _Open, text: str) -> None:
        if text and call.tool.kind == "function":
            events.append(CallArguments(len(self.calls), text))


def _overlap(text: str) -> int:
    """Length of the longest end of `text` that begins a value's closer."""
    lengths = range(min(len(text), len(_CLOSER) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(_CLOSER[:length])), 0)
