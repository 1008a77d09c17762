"""The table of tasks: one file a task, each with answers that can be checked."""

from collections.abc import Mapping
from dataclasses import dataclass

from tools.nano.data.example import Maker
from tools.nano.data.tasks import (
    arithmetic,
    chat,
    copying,
    editing,
    facts,
    json_schema,
    long_arithmetic,
    lookup,
    tool_calls,
    word_problems,
)


@dataclass(frozen=True)
class Task:
    """How examples are made, and the task's share of the examples in packed rows."""

    make: Maker
    share: float


TASKS: Mapping[str, Task] = {
    "arithmetic": Task(arithmetic.make, 20),
    "long_arithmetic": Task(long_arithmetic.make, 8),
    "word_problems": Task(word_problems.make, 8),
    "facts": Task(facts.make, 14),
    "chat": Task(chat.make, 4),
    "copying": Task(copying.make, 12),
    "editing": Task(editing.make, 10),
    "lookup": Task(lookup.maker("lookup", 60, 1500), 8),
    "json_schema": Task(json_schema.make, 12),
    "tool_calls": Task(tool_calls.make, 14),
}

# Rows of one long document are made of these; evaluation asks a single question about texts of about that length.
LONG_LENGTHS = (4096, 8192)
EVALUATED: Mapping[str, Maker] = {
    **{name: task.make for name, task in TASKS.items()},
    "lookup": lookup.maker("lookup", 60, 1500, questions=1),
    "lookup_4k": lookup.maker("lookup_4k", 3600, 3900, questions=1),
    "lookup_8k": lookup.maker("lookup_8k", 7200, 7700, questions=1),
}
