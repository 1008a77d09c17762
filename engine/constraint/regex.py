"""Regular expressions of clients: the subset whose meaning is the same everywhere (spec/serving.md §6.6).

`\\d` and `\\w` are ASCII, `\\s` is Unicode white space, `.` is anything but a line terminator. Groups only group. A
lazy quantifier matches the same texts as a greedy one. `^` and `$` may stand at the ends of top-level alternatives;
there they say whether a search may begin before and end after the match.
"""

from dataclasses import dataclass

from engine.constraint.errors import ConstraintError
from engine.constraint.language import (
    EMPTY,
    LAST,
    Chars,
    Choice,
    Node,
    Repeat,
    Sequence,
    chars,
    is_empty_language,
    pattern,
    states,
    without,
)

MAX_LENGTH = 65_536  # characters of the expression
MAX_COUNT = 8_192
MAX_STATES = 65_536
MAX_DEPTH = 128

DIGITS = chars([(0x30, 0x39)])
WORD = chars([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE = chars(
    [(0x9, 0xD), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
     (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
)  # fmt: skip
NOT_LINE_END = without(chars([(0xA, 0xA), (0xD, 0xD), (0x2028, 0x2029)]))
ANYTHING = Repeat(chars([(0, LAST)]), 0, None)

_CLASSES = {"d": DIGITS, "w": WORD, "s": SPACE, "D": without(DIGITS), "W": without(WORD), "S": without(SPACE)}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_REFUSED = {
    "b": "word boundaries", "B": "word boundaries", "p": "Unicode properties", "P": "Unicode properties",
    "k": "back references", "A": "the anchor \\A; use ^", "Z": "the anchor \\Z; use $", "z": "the anchor \\z; use $",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Alternative:
    """A top-level alternative, and whether it is tied to the beginning and the end of the text."""

    body: Node
    begins: bool
    ends: bool


def full_match(source: str) -> str:
    """The pattern of texts that `source` matches as a whole, for the automaton library.

    Raises:
        ConstraintError: `invalid_regex`.
    """
    return _checked(Choice(tuple(each.body for each in parse(source))))


def search(source: str) -> str:
    """The pattern of texts in which `source` is found, as `pattern` of JSON Schema means it.

    Raises:
        ConstraintError: `invalid_regex`.
    """
    options: list[Node] = []
    for each in parse(source):
        before, after = EMPTY if each.begins else ANYTHING, EMPTY if each.ends else ANYTHING
        options.append(Sequence((before, each.body, after)))
    return _checked(Choice(tuple(options)))


def parse(source: str) -> list[Alternative]:
    """The top-level alternatives.

    Raises:
        ConstraintError: `invalid_regex`, with the position.
    """
    if len(source) > MAX_LENGTH:
        raise ConstraintError("invalid_regex", f"the expression has {len(source)} characters; at most {MAX_LENGTH}")
    return _Parser(source).top()


def _checked(node: Node) -> str:
    if (count := states(node)) > MAX_STATES:
        raise ConstraintError("invalid_regex", f"the expression needs about {count} states; at most {MAX_STATES}")
    if is_empty_language(node):
        raise ConstraintError("invalid_regex", "no text matches the expression")
    return pattern(node)


class _Parser:
    def __init__(self, source: str) -> None:
        self.source, self.at, self.depth = source, 0, 0

    def fail(self, message: str, at: int | None = None) -> ConstraintError:
        place = self.at if at is None else at
        return ConstraintError("invalid_regex", f"{message}, at character {place} of the expression")

    def peek(self, text: str) -> bool:
        return self.source.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if self.peek(text):
            self.at += len(text)
            return True
        return False

    def top(self) -> list[Alternative]:
        found = []
        while True:
            begins = self.take("^")
            body = self.sequence(top=True)
            found.append(Alternative(body, begins, self.take("$")))
            if not self.take("|"):
                break
        if self.at < len(self.source):
            if self.peek(")"):
                raise self.fail("a closing bracket without an opening one")
            raise self.fail("$ may stand only at the end of a top-level alternative", self.at - 1)
        return found

    def alternatives(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail(f"groups are nested deeper than {MAX_DEPTH}")
        options = [self.sequence(top=False)]
        while self.take("|"):
            options.append(self.sequence(top=False))
        self.depth -= 1
        return Choice(tuple(options)) if len(options) > 1 else options[0]

    def sequence(self, *, top: bool) -> Node:
        items: list[Node] = []
        while self.at < len(self.source) and not self.peek("|") and not self.peek(")"):
            if self.peek("$") and top:
                break
            items.append(self.quantified(self.atom()))
        return Sequence(tuple(items))

    def quantified(self, item: Node) -> Node:
        found = self.quantifier()
        if found is None:
            return item
        self.take("?")
        if self.quantifier() is not None:
            raise self.fail("a quantifier has nothing to repeat")
        return Repeat(item, *found)

    def quantifier(self) -> tuple[int, int | None] | None:
        for mark, found in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(mark):
                return found
        if not self.peek("{"):
            return None
        end = self.source.find("}", self.at)
        low, comma, high = self.source[self.at + 1 : end].partition(",")
        if end < 0 or not _number(low) or (high and not _number(high)):
            return None  # a brace that is no quantifier is itself
        least = int(low) if len(low) < 9 else MAX_COUNT + 1
        most = None if comma and not high else least if not comma else int(high) if len(high) < 9 else MAX_COUNT + 1
        if max(least, most or 0) > MAX_COUNT:
            raise self.fail(f"a count is larger than {MAX_COUNT}")
        if most is not None and most < least:
            raise self.fail("a quantifier's largest count is below its least")
        self.at = end + 1
        return least, most

    def atom(self) -> Node:
        at, letter = self.at, self.source[self.at]
        if letter == "(":
            return self.group()
        if letter == "[":
            return self.bracket()
        self.at += 1
        if letter in "*+?":
            raise self.fail("a quantifier has nothing to repeat", at)
        if letter == "^":
            raise self.fail("^ may stand only at the beginning of a top-level alternative", at)
        if letter == "$":
            raise self.fail("$ may stand only at the end of a top-level alternative", at)
        if letter == ".":
            return NOT_LINE_END
        if letter == "\\":
            return self.escape()
        return self.one(ord(letter))

    def group(self) -> Node:
        begin = self.at
        self.at += 1
        if self.take("?"):
            if self.peek("P<") or (self.peek("<") and self.source[self.at + 1 : self.at + 2] not in ("=", "!", "")):
                end = self.source.find(">", self.at)
                if end < 0 or not self.source[self.source.index("<", self.at) + 1 : end].isidentifier():
                    raise self.fail("a group's name is not complete", begin)
                self.at = end + 1
            elif not self.take(":"):
                kind = "look-around" if self.source[self.at : self.at + 1] in ("=", "!", "<") else "a flag or extension"
                raise self.fail(f"{kind} is not supported", begin)
        body = self.alternatives()
        if not self.take(")"):
            raise self.fail("a group is not closed", begin)
        return body

    def bracket(self) -> Chars:
        begin = self.at
        self.at += 1
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            if self.peek("[:"):
                raise self.fail("POSIX classes are not supported")
            first = self.member(begin)
            if self.peek("-") and not self.peek("-]"):
                self.at += 1
                last = self.member(begin)
                if len(first.ranges) != 1 or len(last.ranges) != 1 or first.ranges[0][0] != first.ranges[0][1]:
                    raise self.fail("a range needs one character at each end")
                low, high = first.ranges[0][0], last.ranges[0][1]
                if last.ranges[0][0] != high or high < low:
                    raise self.fail("a range ends before it begins")
                ranges.append((low, high))
            else:
                ranges += first.ranges
        if not ranges:
            raise self.fail("a class is empty", begin)
        return without(chars(ranges)) if negated else chars(ranges)

    def member(self, begin: int) -> Chars:
        if self.at >= len(self.source):
            raise self.fail("a class is not closed", begin)
        letter = self.source[self.at]
        self.at += 1
        if letter == "\\":
            return Chars(((8, 8),)) if self.take("b") else self.escape()
        return self.one(ord(letter))

    def escape(self) -> Chars:
        begin = self.at - 1
        if self.at >= len(self.source):
            raise self.fail("the expression ends with a backslash", begin)
        letter = self.source[self.at]
        self.at += 1
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in _CONTROLS and not (letter == "0" and self.source[self.at : self.at + 1].isdigit()):
            return self.one(_CONTROLS[letter])
        if letter in "xu":
            return self.one(self.code(2 if letter == "x" else 4, begin))
        if letter in _REFUSED:
            raise self.fail(f"{_REFUSED[letter]} are not supported" if "anchor" not in _REFUSED[letter] else
                            f"not supported: {_REFUSED[letter]}", begin)  # fmt: skip
        if letter.isdigit():
            raise self.fail("back references are not supported", begin)
        if letter.isalnum():
            raise self.fail(f"the escape \\{letter} is not known", begin)
        return self.one(ord(letter))

    def code(self, digits: int, begin: int) -> int:
        if self.take("{"):
            end = self.source.find("}", self.at)
            shown = self.source[self.at : end] if 0 <= end <= self.at + 8 else ""
            self.at = end + 1
        else:
            shown = self.source[self.at : self.at + digits]
            self.at += digits
        if not shown or (len(shown) != digits and self.source[self.at - 1 : self.at] != "}"):
            raise self.fail("an escape is not complete", begin)
        try:
            found = int(shown, 16) if shown.isalnum() else LAST + 1
        except ValueError:
            found = LAST + 1
        if found > LAST:
            raise self.fail("an escape is no code point", begin)
        high = range(0xD800, 0xDC00)
        if found in high and self.source.startswith("\\u", self.at):  # a surrogate pair
            low = self.source[self.at + 2 : self.at + 6]
            if len(low) == 4 and low.isalnum() and low[0] in "dD" and low[1] in "cdefCDEF":
                self.at += 6
                return 0x10000 + ((found - 0xD800) << 10) + (int(low, 16) - 0xDC00)
        return found

    def one(self, code: int) -> Chars:
        if 0xD800 <= code <= 0xDFFF:
            raise self.fail("half a surrogate pair is no character")
        return Chars(((code, code),))


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit()
