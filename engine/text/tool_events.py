"""What a stream of an answer with calls is made of."""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.text.stream import Delta
from engine.text.tool_calls import Call
from engine.text.tools import Kind


@dataclass(frozen=True, slots=True)
class CallStart:
    """Call number `index`, from 0, begins."""

    index: int
    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments: JSON text, or the raw input of a custom tool. Never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The arguments of this call are complete."""

    index: int


CallEvent = CallStart | CallArguments | CallEnd
Event = Delta | CallEvent


def call_events(calls: Iterable[Call], first: int = 0) -> list[CallEvent]:
    """The events of whole calls, numbered from `first`."""
    events: list[CallEvent] = []
    for index, call in enumerate(calls, first):
        events.append(CallStart(index, call.name, call.kind))
        if call.arguments:
            events.append(CallArguments(index, call.arguments))
        events.append(CallEnd(index))
    return events
