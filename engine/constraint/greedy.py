"""Where a lexeme may be matched as far as it goes without taking what must come after it.

A lexeme is safe before a set of characters if no text of it can be made longer, within it, by one of them. Found on the
position automaton of the expression (Glushkov, "The abstract theory of automata", 1961), with counted repetitions taken
as endless, which errs on the side of caution.
"""

from dataclasses import dataclass, field

from engine.constraint.language import Chars, Choice, Node, Ranges, Repeat, Rule, Sequence, chars

MAX_POSITIONS = 256


def overlap(one: Ranges, other: Ranges) -> bool:
    """Whether two sets have a character in common."""
    i = j = 0
    while i < len(one) and j < len(other):
        if max(one[i][0], other[j][0]) <= min(one[i][1], other[j][1]):
            return True
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return False


def extensions(node: Node) -> Ranges | None:
    """Characters that can make a text of a regular expression longer, within it. None: it is too large to say."""
    automaton = _Automaton()
    try:
        whole = automaton.read(node)
    except _TooLargeError:
        return None
    found: list[tuple[int, int]] = []
    if whole.nullable:
        for place in whole.first:
            found += automaton.sets[place]
    # Pairs of positions that one and the same text can lead to.
    todo = [(p, q) for p in whole.first for q in whole.first if automaton.meet(p, q)]
    seen = set(todo)
    while todo:
        p, q = todo.pop()
        if p in whole.last:
            for place in automaton.follow[q]:
                found += automaton.sets[place]
        for after_p in automaton.follow[p]:
            for after_q in automaton.follow[q]:
                pair = after_p, after_q
                if pair not in seen and automaton.meet(*pair):
                    seen.add(pair)
                    todo.append(pair)
    return chars(found).ranges


class _TooLargeError(Exception):
    """More positions than are looked at."""


@dataclass(frozen=True, slots=True)
class _Part:
    nullable: bool
    first: frozenset[int]
    last: frozenset[int]


@dataclass
class _Automaton:
    """Positions, each a set of characters, and which may follow which."""

    sets: list[Ranges] = field(default_factory=list)
    follow: list[set[int]] = field(default_factory=list)

    def meet(self, one: int, other: int) -> bool:
        return overlap(self.sets[one], self.sets[other])

    def read(self, node: Node) -> _Part:
        match node:
            case Chars(ranges):
                if len(self.sets) == MAX_POSITIONS:
                    raise _TooLargeError
                self.sets.append(ranges)
                self.follow.append(set())
                here = frozenset({len(self.sets) - 1})
                return _Part(False, here, here)
            case Sequence(items):
                made = _Part(True, frozenset(), frozenset())
                for each in items:
                    made = self._then(made, self.read(each))
                return made
            case Choice(options):
                parts = [self.read(each) for each in options]
                return _Part(
                    any(part.nullable for part in parts),
                    frozenset().union(*(part.first for part in parts)),
                    frozenset().union(*(part.last for part in parts)),
                )
            case Repeat(item, least, most):
                part = self.read(item)
                if most is None or most > 1:
                    for place in part.last:
                        self.follow[place] |= part.first
                return _Part(part.nullable or least == 0, part.first, part.last)
            case Rule(name):
                raise ValueError(f"rule {name} is not regular")

    def _then(self, one: _Part, other: _Part) -> _Part:
        for place in one.last:
            self.follow[place] |= other.first
        return _Part(
            one.nullable and other.nullable,
            one.first | (other.first if one.nullable else frozenset()),
            other.last | (one.last if other.nullable else frozenset()),
        )


class Follow:
    """First characters, and what may come after each rule, of a whole grammar: least fixed points over its rules."""

    def __init__(self, rules: dict[str, Node], root: str) -> None:
        self._nullable = dict.fromkeys(rules, False)
        self._first: dict[str, Ranges] = dict.fromkeys(rules, ())
        self.after: dict[str, Ranges] = dict.fromkeys(rules, ())
        self._rules = rules
        changed = True
        while changed:
            changed = False
            for name, body in rules.items():
                found = self.first(body)
                if found != (self._first[name], self._nullable[name]):
                    (self._first[name], self._nullable[name]), changed = found, True
        self._changed = True
        while self._changed:
            self._changed = False
            for name, body in rules.items():
                self._spread(body, self.after[name])
        assert root in rules

    def first(self, node: Node) -> tuple[Ranges, bool]:
        """Characters that a text may begin with, and whether it may be empty."""
        match node:
            case Chars(ranges):
                return ranges, False
            case Rule(name):
                return self._first[name], self._nullable[name]
            case Sequence(items):
                return self.first_of(items)
            case Choice(options):
                parts = [self.first(each) for each in options]
                return _union(*(ranges for ranges, _ in parts)), any(nullable for _, nullable in parts)
            case Repeat(item, least, _):
                ranges, nullable = self.first(item)
                return ranges, nullable or least == 0

    def first_of(self, items: tuple[Node, ...]) -> tuple[Ranges, bool]:
        """The same of several in sequence."""
        found: Ranges = ()
        for each in items:
            ranges, nullable = self.first(each)
            found = _union(found, ranges)
            if not nullable:
                return found, False
        return found, True

    def before(self, rest: tuple[Node, ...], after: Ranges) -> Ranges:
        """Characters that may come next when `rest` is still to come, and then `after`."""
        ranges, nullable = self.first_of(rest)
        return _union(ranges, after) if nullable else ranges

    def _spread(self, node: Node, after: Ranges) -> None:
        match node:
            case Rule(name):
                more = _union(self.after[name], after)
                if more != self.after[name]:
                    self.after[name], self._changed = more, True
            case Sequence(items):
                for index, each in enumerate(items):
                    self._spread(each, self.before(items[index + 1 :], after))
            case Choice(options):
                for each in options:
                    self._spread(each, after)
            case Repeat(item, _, most):
                again = self.first(item)[0] if most is None or most > 1 else ()
                self._spread(item, _union(after, again))
            case Chars():
                pass


def _union(*sets: Ranges) -> Ranges:
    return chars(each for one in sets for each in one).ranges
