"""Calls in the text of an answer (spec/model.md §15.2, spec/serving.md §6.5). Nothing is ever executed here.

A region of calls counts only if it reads as calls up to the end of the output; otherwise it is text, and later regions
are tried. With `tolerant` complete calls count whatever follows them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.text.markdown import Fence, in_fence, unquoted
from engine.text.tool_markup import (
    OPENER,
    OPENER_TEXTS,
    TOLERANT_OPENER,
    TOLERANT_OPENER_TEXTS,
    Fallback,
    RawCall,
    Region,
    after_closers,
)
from engine.text.tool_values import OMITTED, allowed_types, read_value, write_json
from engine.text.tools import CUSTOM_INPUT, NAME, Kind, Tool, ToolChoice


@dataclass(frozen=True)
class Call:
    """One call. `values` are the typed arguments in their order."""

    name: str
    values: Mapping[str, Any]
    kind: Kind = "function"

    @cached_property
    def arguments(self) -> str:
        """What an API delivers: the arguments as a JSON object; of a custom tool its input, as it was written."""
        if self.kind == "custom":
            text = self.values.get(CUSTOM_INPUT, "")
            return text if isinstance(text, str) else write_json(text)
        return write_json(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """An answer, read.

    Attributes:
        text: what is not a call.
        calls: at most as many as the choice allows.
        fallback: why the first region that could have been calls was not, by the strict rules; `none` if calls were
            read by them or nothing looked like a call. For the request log.
        surplus: how many further calls the choice did not allow.
        withheld: the rest of a call that was cut; neither text nor a call.
    """

    text: str
    calls: tuple[Call, ...] = ()
    fallback: Fallback = "none"
    surplus: int = 0
    withheld: str = ""


@dataclass(slots=True)
class Position:
    """Where in an answer a text begins; always at the start of a line.

    Attributes:
        fence: the fenced block that is open.
        skip: openers before this index of the text belong to a region that failed.
        started: there was text before that is not blank.
        reason: why the first region that failed did.
    """

    fence: Fence = None
    skip: int = 0
    started: bool = False
    reason: Fallback = "none"


class ToolParser:
    """Reads calls of the declared tools. Without a callable tool everything is text.

    Attributes:
        callable: the tools that the choice allows, by name.
        maximum: how many calls it allows; None: any number.
        strict: the parser of the same tools that is not tolerant.
    """

    def __init__(self, tools: Sequence[Tool] = (), choice: ToolChoice | None = None, *, tolerant: bool = False) -> None:
        """`tolerant`: the rules of `--tolerant-tool-calls`."""
        choice = choice or ToolChoice.auto()
        self.callable = choice.callable(tools)
        self.maximum = choice.maximum
        self.strict: ToolParser = ToolParser(tools, choice) if tolerant else self
        self._tolerant = tolerant
        self._opener = TOLERANT_OPENER if tolerant else OPENER
        self._opener_texts = TOLERANT_OPENER_TEXTS if tolerant else OPENER_TEXTS

    def parse(self, text: str, *, ended: bool = True) -> Parsed:
        """Read a whole answer. `ended`: the model ended its turn itself; the answer was not cut."""
        return self.parse_rest(text, Position(), ended=ended)

    def parse_rest(self, text: str, position: Position, *, ended: bool) -> Parsed:
        """Read the end of an answer, from `position`, the start of a line."""
        if not self.callable:
            return Parsed(text=text)
        reason, fence, skip = position.reason, position.fence, position.skip
        pieces: list[str] = []
        calls: list[Call] = []
        withheld = ""
        while text:
            for region in self._regions(text, fence, skip):
                kept = [*region.calls, *filter(None, [region.unclosed if ended else None])]
                if region.state == "calls" or (self._tolerant and kept):
                    break
                reason = region.reason if reason == "none" else reason
            else:
                pieces.append(text)
                break
            started = position.started or any(piece.strip() for piece in pieces)
            pieces.append(before_calls(text[: region.start], started=started))
            calls += map(self.call, kept)
            fence, skip = None, 0
            if region.state == "text" and reason == "none":
                reason = region.reason
            if region.cut:
                withheld = "" if kept[-1] is region.unclosed else text[region.end :].lstrip()
                break
            text = text[after_closers(text, region.end) :] if region.state == "text" else ""
        if calls and not self._tolerant:
            reason = "none"
        elif reason == "none" and any(call.name not in self.callable for call in calls):
            reason = "undeclared_tool"
        most = len(calls) if self.maximum is None else self.maximum
        return Parsed(
            text="".join(pieces),
            calls=tuple(calls[:most]),
            fallback=reason,
            surplus=len(calls[most:]),
            withheld=withheld,
        )

    def undecided(self, text: str, position: Position) -> tuple[int, bool]:
        """How much of an unfinished text is certainly not part of a call, and whether an opener stands there.

        `position` learns what failed on the way.
        """
        for start, certain in unquoted(text, self._opener, position.fence, final=False):
            if start < position.skip:
                continue
            if not certain:
                return start, True
            region = self._region(text, start, final=False)
            if region.state == "open" or (self._tolerant and region.calls):
                return start, True
            position.skip = region.resume
            if position.reason == "none":
                position.reason = region.reason
        last = text.rfind("<")
        may_begin = last >= position.skip and any(opener.startswith(text[last:]) for opener in self._opener_texts)
        return (last if may_begin and not in_fence(text[:last], position.fence) else len(text)), False

    def call(self, raw: RawCall) -> Call:
        """The call with typed arguments: of a repeated parameter the place of the first and the value of the last."""
        tool = self.callable.get(raw.name)
        schema: Mapping[str, Any] = tool.schema if tool else {}
        written = dict(raw.parameters)
        values = {key: read_value(text, allowed_types(schema, key)) for key, text in written.items()}
        kept = {key: value for key, value in values.items() if value is not OMITTED}
        return Call(raw.name, kept, tool.kind if tool else "function")

    def _regions(self, text: str, fence: Fence, skip: int) -> Iterator[Region]:
        """The regions of the end of an answer. One that failed is text, and the next begins after what it had read."""
        for start, _ in unquoted(text, self._opener, fence, final=True):
            if start >= skip:
                region = self._region(text, start, final=True)
                yield region
                skip = region.resume

    def _region(self, text: str, start: int, *, final: bool) -> Region:
        """Parameter tags inside a value are taken as pairs where that works out, else as they come."""

        def read(*, nested: bool) -> Region:
            return Region(text, start, final=final, nested=nested, tolerant=self._tolerant, name_fault=self._name_fault)

        paired = read(nested=True)
        if paired.state == "calls" or not paired.tags_in_values:
            return paired
        plain = read(nested=False)
        if plain.state == "calls" or paired.state == plain.state == "text":
            return max(paired, plain, key=lambda region: (region.state == "calls", len(region.calls), region.resume))
        return paired if paired.state == "open" else plain

    def _name_fault(self, name: str) -> Fallback:
        if NAME.fullmatch(name) is None:
            return "invalid_tool_name"
        return "none" if self._tolerant or name in self.callable else "undeclared_tool"


def before_calls(text: str, *, started: bool) -> str:
    """Text before a call without the framing: a blank line, or everything when nothing was said.

    It is what the chat template puts between the text and the first call, so rendering gives back the same tokens.
    """
    if not started and not text.strip():
        return ""
    return text.removesuffix("\n").removesuffix("\n")
