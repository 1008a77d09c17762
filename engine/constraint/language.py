"""Regular expressions as data: what `regex` and `gbnf` read into, and the text of the automaton library they become.

Every node is immutable. Sets of characters are sorted, disjoint, inclusive ranges of code points without surrogates.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other; none is the empty text."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """`least` to `most` times; None is without end."""

    item: "Node"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Rule:
    """What the rule of that name matches (grammars only)."""

    name: str


Node: TypeAlias = Chars | Sequence | Choice | Repeat | Rule

EMPTY = Sequence(())


def chars(ranges: Iterable[tuple[int, int]]) -> Chars:
    """The union of inclusive ranges."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    cut: list[tuple[int, int]] = []
    first, last = SURROGATES
    for low, high in merged:
        for part in ((low, min(high, first - 1)), (max(low, last + 1), high)):
            if part[0] <= part[1]:
                cut.append(part)
    return Chars(tuple(cut))


def without(excluded: Chars) -> Chars:
    """Every other character."""
    found: list[tuple[int, int]] = []
    begin = 0
    for low, high in excluded.ranges:
        if begin < low:
            found.append((begin, low - 1))
        begin = high + 1
    if begin <= LAST:
        found.append((begin, LAST))
    return chars(found)


def text(literal: str) -> Node:
    """Exactly these characters."""
    return Sequence(tuple(Chars(((ord(each), ord(each)),)) for each in literal))


def is_empty_language(node: Node) -> bool:
    """Nothing at all matches. Rules count as matching something."""
    match node:
        case Chars(ranges):
            return not ranges
        case Sequence(items):
            return any(map(is_empty_language, items))
        case Choice(options):
            return all(map(is_empty_language, options))
        case Repeat(item, least, _):
            return least > 0 and is_empty_language(item)
        case Rule():
            return False


def states(node: Node) -> int:
    """About how many states the unrolled automaton has."""
    match node:
        case Chars() | Rule():
            return 1
        case Sequence(items):
            return 1 + sum(map(states, items))
        case Choice(options):
            return 1 + sum(map(states, options))
        case Repeat(item, least, most):
            return 1 + states(item) * max(1, least if most is None else most)


def pattern(node: Node) -> str:
    """The node in the syntax of the automaton library (Rust's `regex` crate), fit to stand between two slashes."""
    match node:
        case Chars(ranges):
            if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
                return _character(ranges[0][0])
            return "[" + "".join(_range(low, high) for low, high in ranges) + "]"
        case Sequence(items):
            return "".join(map(pattern, items)) or "(?:)"
        case Choice(options):
            return "(?:" + "|".join(map(pattern, options)) + ")"
        case Repeat(item, least, most):
            inner = pattern(item)
            return f"{inner if isinstance(item, Chars) else f'(?:{inner})'}{times(least, most)}"
        case Rule(name):
            raise ValueError(f"rule {name} is not regular")


def times(least: int, most: int | None) -> str:
    """The shortest quantifier."""
    short = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
    if (least, most) in short:
        return short[least, most]
    return f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"


def _range(low: int, high: int) -> str:
    return _character(low) if low == high else f"{_character(low)}-{_character(high)}"


def _character(code: int) -> str:
    letter = chr(code)
    return letter if letter.isascii() and letter.isalnum() else f"\\x{{{code:x}}}"
