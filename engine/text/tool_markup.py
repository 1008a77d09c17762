"""The wire format of calls: one region of text, read up to its end (spec/model.md §15.2, spec/serving.md §6.5).

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

Also read: a `<function_calls>` wrapper, functions without a wrapper, `<invoke ...>` for function, `<param ...>` for
parameter, and `name="..."` attributes. A close tag must match its open tag.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NoReturn

Fallback = Literal["none", "malformed_structure", "invalid_tool_name", "undeclared_tool", "trailing_content"]

OPENER = re.compile(r"<tool_call>|<function_calls>|<(?:function|invoke)[= ]")
TOLERANT_OPENER = re.compile(r"<tool_calls?(?![A-Za-z0-9_])|<function_calls>|<(?:function|invoke)[= ]")
OPENER_TEXTS = ("<tool_call>", "<function_calls>", "<function=", "<function ", "<invoke=", "<invoke ")
TOLERANT_OPENER_TEXTS = (*OPENER_TEXTS, "<tool_calls>")

# Open tags have a greatest length, so that an unfinished one is known to be none after so many characters.
_LONGEST_HEAD = 512
_NAMED = (
    r"(?:=([^<>\n]{0,256})|[ \t]{1,8}name[ \t]{0,8}=[ \t]{0,8}"
    r"""(?:"([^"<>\n]{0,256})"|'([^'<>\n]{0,256})')[ \t]{0,8})>"""
)
_WRAPPER = re.compile(r"<(tool_call|function_calls)>")
_TOLERANT_WRAPPER = re.compile(r"<(tool_calls?|function_calls)(?:[ \t]{0,8}>|(?=\s*<))")
_FUNCTION = re.compile(r"<(function|invoke)" + _NAMED)
_TOLERANT_FUNCTION = re.compile(
    r"""<(function|invoke)[ \t]{0,8}[=:]?[ \t]{0,8}(?:name[ \t]{0,8}=[ \t]{0,8})?["']?([A-Za-z0-9_-]{1,256})["']?"""
    r"[ \t]{0,8}(?:>|(?=\n))|" + _FUNCTION.pattern
)
_PARAMETER = re.compile(r"<(parameter|param)" + _NAMED)
_OPEN_WRAPPER = re.compile(r"<tool_calls?\s*")
_PARAMETER_TAG = re.compile(r"<(/?)(parameter|param)(?=[=>\s])")
_STRAY_CLOSER = re.compile(r"\s*</(?:tool_calls?|function_calls|function|invoke|parameter|param)>")
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call as written: its name, and key and text of each parameter in order, repeated ones too."""

    name: str
    parameters: tuple[tuple[str, str], ...]


class _StopReadingError(Exception):
    """`reason` None: the text ended, and what follows decides."""

    def __init__(self, reason: Fallback | None, at: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


class Region:
    """Reads calls from `start`, where an opener stands, to the end of the text.

    Attributes:
        state: `calls` when everything is calls and white space; `open` when more text decides (never if `final`);
            `text` when it is not a region of calls.
        reason: why it is `text`.
        resume: where to look for the next region after this one failed. All before it was read as part of this one.
        calls: the functions that were read completely, whatever came later.
        end: end of the last block that was read completely.
        unclosed: a last function of which only closers are missing at the end of the text.
        cut: the text ended inside a call.
    """

    def __init__(
        self,
        text: str,
        start: int,
        *,
        final: bool,
        nested: bool,
        tolerant: bool,
        name_fault: Callable[[str], Fallback],
    ) -> None:
        """`nested`: parameter tags inside a value pair up; else the first closer that fits ends the value."""
        self._text = text
        self._at = start
        self._final = final
        self._nested = nested
        self._tolerant = tolerant
        self._name_fault = name_fault
        self.start = start
        self.state: Literal["calls", "open", "text"] = "calls"
        self.reason: Fallback = "none"
        self.resume = start
        self.calls: list[RawCall] = []
        self.end = start
        self.unclosed: RawCall | None = None
        self.cut = False
        self.tags_in_values = False
        try:
            self._read()
            self.resume = len(text)
        except _StopReadingError as stop:
            self.resume = max(stop.at, start + 1)
            self.state = "open" if stop.reason is None else "text"
            self.reason = stop.reason or "none"

    def _read(self) -> None:
        opener = TOLERANT_OPENER if self._tolerant else OPENER
        texts = TOLERANT_OPENER_TEXTS if self._tolerant else OPENER_TEXTS
        while True:
            self._block()
            if self._tolerant:
                self._at = after_closers(self._text, self._at)
            self.end = self._at
            self._space()
            if self._at == len(self._text):
                if self._final:
                    return
                raise _StopReadingError(None, self._at)
            if opener.match(self._text, self._at) is None:
                if any(self._ends_within(text) for text in texts):
                    self._out_of_text()
                raise _StopReadingError("trailing_content", self._at)

    def _block(self) -> None:
        wrapper = (_TOLERANT_WRAPPER if self._tolerant else _WRAPPER).match(self._text, self._at)
        if wrapper is None:
            if self._tolerant and not self._final and _OPEN_WRAPPER.fullmatch(self._text, self._at):
                self._out_of_text()
            self._function()
            return
        self._at = wrapper.end()
        empty = True
        while True:
            self._space()
            if not empty and self._literal(f"</{wrapper[1]}>"):
                return
            if wrapper[1] == "function_calls" and self._literal_ahead("<tool_call>"):
                self._block()
            elif (
                self._tolerant
                and not empty
                and (_STRAY_CLOSER.match(self._text, self._at) or _TOLERANT_WRAPPER.match(self._text, self._at))
            ):
                return  # the closer is another one, or missing and the next wrapper begins
            else:
                self._function()
            empty = False

    def _function(self) -> None:
        if self._at == len(self._text):
            self._out_of_text()
        head = self._head(_TOLERANT_FUNCTION if self._tolerant else _FUNCTION, "<function", "<invoke")
        tag, name = _tag_and_name(head)
        fault = self._name_fault(name)
        if fault != "none":
            raise _StopReadingError(fault, head.end())
        self._at = head.end()
        parameters: list[tuple[str, str]] = []
        while True:
            self._space()
            if self._literal(f"</{tag}>"):
                self.calls.append(RawCall(name, tuple(parameters)))
                self.end = self._at
                return
            if self._at == len(self._text):
                self.unclosed = RawCall(name, tuple(parameters)) if self._final else None
                self._out_of_text()
            parameters.append(self._parameter(f"</{tag}>"))

    def _parameter(self, function_closer: str) -> tuple[str, str]:
        head = self._head(_PARAMETER, "<parameter", "<param")
        tag, key = _tag_and_name(head)
        begin = head.end()
        depth = 0
        for found in _PARAMETER_TAG.finditer(self._text, begin):
            if found[2] != tag:
                continue
            if not found[1]:
                if _PARAMETER.match(self._text, found.start()):
                    self.tags_in_values = True
                    depth += self._nested
            elif self._text.startswith(">", found.end()):
                if depth:
                    depth -= 1
                elif self._closes(found.end() + 1, function_closer):
                    self._at = found.end() + 1
                    return key, _unframed(self._text[begin : found.start()])
        return self._out_of_text()

    def _closes(self, at: int, function_closer: str) -> bool:
        """Whether a parameter closer that ends at `at` is one, and not part of the value."""
        self._at = at
        self._space()
        if self._at == len(self._text):
            if not self._final:
                self._out_of_text()
            return True
        if self._text.startswith(function_closer, self._at) or _PARAMETER.match(self._text, self._at):
            return True
        if not self._final and (self._ends_within(function_closer) or self._ends_in_head("<parameter", "<param")):
            self._out_of_text()
        return False

    def _head(self, pattern: re.Pattern[str], *beginnings: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            if self._ends_in_head(*beginnings):
                self._out_of_text()
            raise _StopReadingError("malformed_structure", self._at)
        return found

    def _ends_in_head(self, *beginnings: str) -> bool:
        """Whether the text ends inside what may be an open tag."""
        rest = self._text[self._at : self._at + _LONGEST_HEAD]
        if len(rest) == _LONGEST_HEAD or re.search(r"[<>\n]", rest[1:]):
            return False
        return any(rest.startswith(text) or text.startswith(rest) for text in beginnings)

    def _literal(self, text: str) -> bool:
        if self._literal_ahead(text):
            self._at += len(text)
            return True
        return False

    def _literal_ahead(self, text: str) -> bool:
        if self._ends_within(text):
            self._out_of_text()
        return self._text.startswith(text, self._at)

    def _ends_within(self, text: str) -> bool:
        """Whether the text ends before it is known if `text` stands here."""
        left = len(self._text) - self._at
        return 0 < left < len(text) and text.startswith(self._text[self._at :])

    def _space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _out_of_text(self) -> NoReturn:
        self.cut = True
        raise _StopReadingError("malformed_structure" if self._final else None, len(self._text))


def after_closers(text: str, at: int) -> int:
    """Where the stray close tags that stand at `at` end."""
    while found := _STRAY_CLOSER.match(text, at):
        at = found.end()
    return at


def _tag_and_name(head: re.Match[str]) -> tuple[str, str]:
    tag, *names = [group for group in head.groups() if group is not None]
    return tag, names[0].strip() if names else ""


def _unframed(value: str) -> str:
    """The value without the one newline of framing on each side."""
    return value.removeprefix("\n").removesuffix("\n")
