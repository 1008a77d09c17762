"""Why a constraint is refused, or why an answer under one ended."""

from typing import Literal

Code = Literal[
    "invalid_json_schema",
    "unsupported_json_schema",
    "unsatisfiable_json_schema",
    "invalid_grammar",
    "invalid_regex",
    "invalid_choice",
    "constraint_dead_end",
    "constraint_failed",
]


class ConstraintError(Exception):
    """`code` is that of spec/serving.md §4.4; `constraint_failed` is ours, for a worker that could not do its work.

    `pointer` is the JSON pointer of the place within what the client sent, "" for the whole.
    """

    def __init__(self, code: Code, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.code: Code = code
        self.message, self.pointer = message, pointer


def pointer(*steps: str | int) -> str:
    """JSON pointer (RFC 6901) of a path."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)
