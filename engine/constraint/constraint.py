"""What a client may ask of an answer's form, and the grammar that it becomes (spec/serving.md §6.6)."""

import json
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, Literal

from engine.constraint import gbnf, regex
from engine.constraint.errors import Code, ConstraintError
from engine.constraint.language import Choice, pattern, text
from engine.constraint.schema import read_schema

Kind = Literal["json_object", "json_schema", "grammar", "regex", "choice", "tools"]

MAX_CHOICES = 16_384
MAX_CHOICE_CHARACTERS = 1_000_000
MAX_GRAMMAR_BYTES = 8 * 1024**2

# The code of a constraint that the library refuses, or that takes too long to compile.
REFUSED: dict[Kind, Code] = {
    "json_object": "unsupported_json_schema",
    "json_schema": "unsupported_json_schema",
    "grammar": "invalid_grammar",
    "regex": "invalid_regex",
    "choice": "invalid_choice",
    "tools": "unsupported_json_schema",
}

# The model chooses among tokenizations: it knows best how it writes what the grammar leaves no choice about.
_HEAD = '%llguidance {"no_forcing": true}\n'
_AT_ONCE = "start: answer\n"
_AFTER_THOUGHT = "start: BLANK? answer\nBLANK: /\\n{1,2}/\n"


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A grammar whose rule `answer` is the whole answer, in the notation of the grammar library.

    Attributes:
        exact: every character counts, white space at the beginning too.
        blank: the answer never begins with white space, so a model that has thought may write the blank line it is used
            to, which no reader sees.
        suspect: JSON pointer of what is to blame if the library refuses.
        field: the place in the request that it comes from.
    """

    kind: Kind
    rules: str
    exact: bool = False
    blank: bool = False
    suspect: str = ""
    field: str = ""

    def source(self, *, after_thought: bool) -> bytes:
        """The whole grammar, as it goes to the engine."""
        start = _AFTER_THOUGHT if after_thought and self.blank else _AT_ONCE
        return (_HEAD + start + self.rules).encode()

    def refusal(self, code: Code | None, message: str) -> ConstraintError:
        """The error of a grammar that does not compile, in the words of what the client sent."""
        wanted = REFUSED[self.kind]
        speaks_json = self.kind in ("json_object", "json_schema", "tools")
        if code == "constraint_failed" or (code == "unsatisfiable_json_schema" and speaks_json):
            wanted = code
        pointer = self.suspect if "oneOf" in message else ""
        return ConstraintError(wanted, message, pointer)


def json_object() -> Constraint:
    """Any JSON object, written compactly."""
    return _json("json_object", {"type": "object"})


def json_schema(schema: Any) -> Constraint:
    """JSON that fits a schema, written compactly, properties in the order of their declaration.

    Raises:
        ConstraintError: see `read_schema`.
    """
    return _json("json_schema", schema)


def _json(kind: Kind, schema: Any) -> Constraint:
    read = read_schema(schema)
    return Constraint(kind=kind, rules=f"answer: %json {read.text}\n", blank=True, suspect=read.first_one_of or "")


def matching(expression: str) -> Constraint:
    """Text that a regular expression matches as a whole.

    Raises:
        ConstraintError: `invalid_regex`.
    """
    return Constraint(kind="regex", rules=f"answer: T0\nT0: /{regex.full_match(expression)}/\n", exact=True)


def one_of(options: Items[str]) -> Constraint:
    """Exactly one of these texts; one may be empty.

    Raises:
        ConstraintError: `invalid_choice`.
    """
    if not options:
        raise ConstraintError("invalid_choice", "choice is empty; give at least one text")
    if len(options) > MAX_CHOICES or sum(map(len, options)) > MAX_CHOICE_CHARACTERS:
        raise ConstraintError(
            "invalid_choice", f"at most {MAX_CHOICES} choices of {MAX_CHOICE_CHARACTERS} characters together"
        )
    spoken = [each for each in dict.fromkeys(options) if each]
    if any("\ud800" <= letter <= "\udfff" for each in spoken for letter in each):
        raise ConstraintError("invalid_choice", "a choice holds half a surrogate pair")
    empty = "" in options
    if not spoken:
        return Constraint(kind="choice", rules='answer: ""\n', exact=True)
    terminal = pattern(Choice(tuple(map(text, spoken))))
    return Constraint(kind="choice", rules=f"answer: {'| ' if empty else ''}T0\nT0: /{terminal}/\n", exact=True)


def grammar(source: str) -> Constraint:
    """Text that a GBNF grammar generates from its rule `root`.

    Raises:
        ConstraintError: `invalid_grammar`.
    """
    return Constraint(kind="grammar", rules=gbnf.to_lark(source), exact=True)


def quoted(literal: str) -> str:
    """A text in the notation of the grammar library."""
    return json.dumps(literal, ensure_ascii=False)
