"""GBNF, the grammar notation of llama.cpp, read into rules and written for the grammar library.

The library parses lexemes, each a regular expression matched as far as it goes. Whatever is regular becomes one lexeme
as large as possible: a grammar without recursion is a single one and means exactly what GBNF says. In a recursive
grammar a lexeme that could take the beginning of what follows it is cut into smaller ones, down to single characters.
What remains out of reach are alternatives of which one lexeme begins another; answers fit the grammar all the same.
"""

from dataclasses import dataclass

from engine.constraint.errors import ConstraintError
from engine.constraint.greedy import Follow, extensions, overlap
from engine.constraint.language import (
    LAST,
    Chars,
    Choice,
    Node,
    Ranges,
    Repeat,
    Rule,
    Sequence,
    chars,
    is_empty_language,
    pattern,
    states,
    times,
    without,
)

ROOT = "root"
MAX_LENGTH = 262_144
MAX_RULES = 4_096
MAX_COUNT = 8_192
MAX_STATES = 65_536
MAX_DEPTH = 64

ANY = chars([(0, LAST)])
_ESCAPES = {"n": 10, "r": 13, "t": 9, "\\": 92, '"': 34, "[": 91, "]": 93, "-": 45, "^": 94, "/": 47}
_WIDTHS = {"x": 2, "u": 4, "U": 8}


def to_lark(source: str) -> str:
    """The same grammar for the library; the root is the rule `answer`.

    Raises:
        ConstraintError: `invalid_grammar`, with the line.
    """
    if len(source) > MAX_LENGTH:
        raise _invalid(f"the grammar has {len(source)} characters; at most {MAX_LENGTH}")
    rules = _Reader(source).rules()
    if ROOT not in rules:
        raise _invalid("there is no rule root")
    _check_references(rules)
    return _Writer(rules).lark()


def _invalid(message: str) -> ConstraintError:
    return ConstraintError("invalid_grammar", message)


class _Reader:
    def __init__(self, source: str) -> None:
        self.source, self.at, self.depth = source, 0, 0

    def fail(self, message: str) -> ConstraintError:
        return _invalid(f"{message}, in line {self.source.count(chr(10), 0, self.at) + 1} of the grammar")

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self.blank(lines=True)
        while self.at < len(self.source):
            name = self.name()
            self.blank()
            if not self.take("::="):
                raise self.fail(f"::= is missing after {name!r}")
            self.blank(lines=True)
            if name in found:
                raise self.fail(f"the rule {name!r} is defined twice")
            if len(found) == MAX_RULES:
                raise self.fail(f"there are more than {MAX_RULES} rules")
            found[name] = self.alternatives(nested=False)
            self.blank()
            if self.at < len(self.source) and self.source[self.at] not in "\r\n":
                raise self.fail(f"{self.source[self.at]!r} is not expected")
            self.blank(lines=True)
        return found

    def take(self, mark: str) -> bool:
        if self.source.startswith(mark, self.at):
            self.at += len(mark)
            return True
        return False

    def blank(self, *, lines: bool = False) -> None:
        while self.at < len(self.source):
            letter = self.source[self.at]
            if letter == "#":
                end = self.source.find("\n", self.at)
                self.at = len(self.source) if end < 0 else end
            elif letter in " \t" or (lines and letter in "\r\n"):
                self.at += 1
            else:
                return

    def name(self) -> str:
        begin = self.at
        while self.at < len(self.source) and (
            self.source[self.at] in "-_" or (self.source[self.at].isascii() and self.source[self.at].isalnum())
        ):
            self.at += 1
        if begin == self.at:
            raise self.fail("the name of a rule is expected")
        return self.source[begin : self.at]

    def alternatives(self, *, nested: bool) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail(f"groups are nested deeper than {MAX_DEPTH}")
        options = [self.sequence(nested=nested)]
        while self.take("|"):
            self.blank(lines=True)
            options.append(self.sequence(nested=nested))
        self.depth -= 1
        return Choice(tuple(options)) if len(options) > 1 else options[0]

    def sequence(self, *, nested: bool) -> Node:
        items: list[Node] = []
        while self.at < len(self.source) and self.source[self.at] not in "|)":
            if self.source[self.at] in "\r\n":
                if not nested:
                    break
                self.blank(lines=True)
                continue
            item = self.item()
            self.blank(lines=nested)
            while (found := self.quantifier()) is not None:
                item = Repeat(item, *found)
                self.blank(lines=nested)
            items.append(item)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def item(self) -> Node:
        if self.take('"'):
            letters: list[Node] = []
            while not self.take('"'):
                code = self.character("a text")
                letters.append(Chars(((code, code),)))
            return Sequence(tuple(letters))
        if self.take("["):
            return self.bracket()
        if self.take("("):
            self.blank(lines=True)
            inner = self.alternatives(nested=True)
            if not self.take(")"):
                raise self.fail("a group is not closed")
            return inner
        if self.take("."):
            return ANY
        if self.source[self.at] in "*+?{":
            raise self.fail("a quantifier has nothing to repeat")
        return Rule(self.name())

    def bracket(self) -> Chars:
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            low = self.character("a class")
            high = low
            if self.source.startswith("-", self.at) and not self.source.startswith("-]", self.at):
                self.at += 1
                high = self.character("a class")
            if high < low:
                raise self.fail("a range ends before it begins")
            ranges.append((low, high))
        found = without(chars(ranges)) if negated else chars(ranges)
        if not found.ranges:
            raise self.fail("a class is empty")
        return found

    def character(self, where: str) -> int:
        if self.at >= len(self.source) or self.source[self.at] == "\n":
            raise self.fail(f"{where} is not closed")
        letter = self.source[self.at]
        self.at += 1
        if letter != "\\":
            return ord(letter)
        kind = self.source[self.at : self.at + 1]
        self.at += 1
        if kind in _ESCAPES:
            return _ESCAPES[kind]
        if kind in _WIDTHS:
            digits = self.source[self.at : self.at + _WIDTHS[kind]]
            self.at += len(digits)
            if len(digits) == _WIDTHS[kind] and all(each in "0123456789abcdefABCDEF" for each in digits):
                code = int(digits, 16)
                if code <= LAST and not 0xD800 <= code <= 0xDFFF:
                    return code
        raise self.fail(f"the escape \\{kind} is not known or not complete")

    def quantifier(self) -> tuple[int, int | None] | None:
        for mark, found in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(mark):
                return found
        if not self.take("{"):
            return None
        end = self.source.find("}", self.at)
        low, comma, high = (part.strip() for part in self.source[self.at : max(end, 0)].partition(","))
        if end < 0 or not all(
            each.isascii() and each.isdigit() and len(each) < 9 for each in (low or "0", high or "0")
        ):
            raise self.fail("a quantifier is {m}, {m,}, {,n} or {m,n}")
        if not low and not high:
            raise self.fail("a quantifier has no number")
        least = int(low or 0)
        most = least if not comma else int(high) if high else None
        if max(least, most or 0) > MAX_COUNT:
            raise self.fail(f"a count is larger than {MAX_COUNT}")
        if most is not None and most < least:
            raise self.fail("a quantifier's largest count is below its least")
        self.at = end + 1
        return least, most


def _children(node: Node) -> tuple[Node, ...]:
    match node:
        case Sequence(items):
            return items
        case Choice(options):
            return options
        case Repeat(item, _, _):
            return (item,)
        case _:
            return ()


def _references(node: Node) -> set[str]:
    if isinstance(node, Rule):
        return {node.name}
    return set().union(*map(_references, _children(node)))


def _check_references(rules: dict[str, Node]) -> None:
    for name, body in rules.items():
        for wanted in sorted(_references(body)):
            if wanted not in rules:
                raise _invalid(f"the rule {name!r} uses {wanted[:60]!r}, which is not defined")
    # A rule that needs itself before it can end matches nothing: the least fixed point of what can end.
    ends: set[str] = set()
    while True:
        more = {name for name, body in rules.items() if name not in ends and _ends(body, ends)}
        if not more:
            break
        ends |= more
    if ROOT not in ends:
        raise _invalid("no text matches the grammar: its root never ends")


def _ends(node: Node, ends: set[str]) -> bool:
    match node:
        case Rule(name):
            return name in ends
        case Sequence(items):
            return all(_ends(each, ends) for each in items)
        case Choice(options):
            return any(_ends(each, ends) for each in options)
        case Repeat(item, least, _):
            return least == 0 or _ends(item, ends)
        case Chars():
            return True


@dataclass(frozen=True, slots=True)
class _Sizes:
    states: int
    depth: int


class _Writer:
    """Writes regular rules into their users, and the others as rules of the library."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self.rules = rules
        self.regular = self._find_regular()
        self.names = {name: "answer" if name == ROOT else f"r{number}" for number, name in enumerate(rules)}
        self.lexemes: dict[str, str] = {}
        self._inlined: dict[str, Node] = {}
        self.follow = Follow(rules, ROOT)

    def lark(self) -> str:
        wanted, lines, seen = [ROOT], [], {ROOT}
        while wanted:
            name = wanted.pop()
            body = self._folded(self.rules[name])
            lines.append(f"{self.names[name]}: {self._write(body, self.follow.after[name])}")
            for other in sorted(_references(body) - seen):
                seen.add(other)
                wanted.append(other)
        lines += [f"{lexeme}: /{regex}/" for regex, lexeme in self.lexemes.items()]
        return "\n".join(lines) + "\n"

    def _find_regular(self) -> dict[str, _Sizes]:
        """Rules that do not reach themselves and are not too large once written out."""
        regular: dict[str, _Sizes] = {}
        while True:
            more = {}
            for name, body in self.rules.items():
                if name not in regular and _references(body) <= set(regular):
                    size = self._size(body, regular)
                    if size.states <= MAX_STATES and size.depth <= MAX_DEPTH:
                        more[name] = size
            if not more:
                return regular
            regular |= more

    def _size(self, node: Node, known: dict[str, _Sizes]) -> _Sizes:
        match node:
            case Rule(name):
                return known[name]
            case Repeat(item, least, most):
                inner = self._size(item, known)
                return _Sizes(1 + inner.states * max(1, least if most is None else most), inner.depth + 1)
            case _:
                parts = [self._size(each, known) for each in _children(node)]
                return _Sizes(1 + sum(part.states for part in parts), 1 + max((p.depth for p in parts), default=0))

    def _folded(self, node: Node) -> Node:
        """The node with regular rules written out, and neighbours in a sequence that are regular put together."""
        match node:
            case Rule(name) if name in self.regular:
                if name not in self._inlined:
                    self._inlined[name] = self._folded(self.rules[name])
                return self._inlined[name]
            case Sequence(items):
                return Sequence(tuple(map(self._folded, items)))
            case Choice(options):
                return Choice(tuple(map(self._folded, options)))
            case Repeat(item, least, most):
                return Repeat(self._folded(item), least, most)
            case _:
                return node

    def _write(self, node: Node, after: Ranges) -> str:
        """The node before characters `after`, in the library's notation."""
        if not _references(node) and self._safe(node, after):
            return self._lexeme(node)
        match node:
            case Rule(name):
                return self.names[name]
            case Choice(options):
                regular = Choice(tuple(each for each in options if not _references(each)))
                if self._safe(regular, after):
                    written = [self._write(each, after) for each in options if _references(each)]
                    if regular.options:
                        written.insert(0, self._lexeme(regular))
                else:
                    written = [self._write(each, after) for each in options]
                return "(" + " | ".join(written) + ")"
            case Repeat(item, least, most):
                again = self.follow.first(item)[0] if most is None or most > 1 else ()
                return f"({self._write(item, chars((*after, *again)).ranges)}){times(least, most)}"
            case Sequence(items):
                return "(" + " ".join(self._runs(items, after)) + ")"
            case Chars():
                raise AssertionError("a single character is safe")

    def _runs(self, items: tuple[Node, ...], after: Ranges) -> list[str]:
        """A sequence: neighbours that are regular and safe together as one lexeme, as many as possible."""
        written: list[str] = []
        begin = 0
        while begin < len(items):
            end = begin
            while end < len(items) and not _references(items[end]):
                end += 1
            while end > begin + 1 and not self._safe(
                Sequence(items[begin:end]), self.follow.before(items[end:], after)
            ):
                end -= 1
            end = max(end, begin + 1)
            part = items[begin] if end == begin + 1 else Sequence(items[begin:end])
            written.append(self._write(part, self.follow.before(items[end:], after)))
            begin = end
        return written

    def _safe(self, node: Node, after: Ranges) -> bool:
        found = extensions(node)
        return found is None or not overlap(found, after)

    def _lexeme(self, node: Node) -> str:
        if states(node) == 1 and not isinstance(node, Chars):
            return '""'
        if is_empty_language(node):
            raise _invalid("a part of the grammar matches no text")
        regex = pattern(node)
        return self.lexemes.setdefault(regex, f"T{len(self.lexemes)}")
