"""One generated example: a conversation whose last turn is the right answer, and a check of any other answer."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, Protocol

Effort = Literal["none", "low", "medium", "xhigh"]
"""How much the answer thinks. `none` is thinking off, `xhigh` what a request gets that says nothing."""

Split = Literal["train", "held-out"]

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Reply:
    """What a model answered: both channels, and whether it stopped by itself."""

    reasoning: str
    content: str
    finished: bool = True


@dataclass(frozen=True, kw_only=True)
class Example:
    """A conversation for training, and a question with a check for evaluation.

    Attributes:
        task: name in the table of tasks.
        messages: turns as in Chat Completions; the last one is the assistant's reference answer.
        effort: what the request asks for.
        check: whether a reply's content is right.
        tools: functions that the request declares.
    """

    task: str
    messages: Sequence[Message]
    effort: Effort
    check: Callable[[str], bool]
    tools: Sequence[Mapping[str, Any]] = ()

    @property
    def thinks(self) -> bool:
        """Whether the answer begins in an open think block."""
        return self.effort != "none"

    def passes(self, reply: Reply) -> bool:
        """The reply ended by itself, thought if and only if it was asked to, and is right."""
        return reply.finished and bool(reply.reasoning.strip()) == self.thinks and self.check(reply.content)

    @property
    def reference(self) -> Reply:
        """The last turn as a reply."""
        last = self.messages[-1]
        calls = "\n".join(call_text(call["function"]) for call in last.get("tool_calls", ()))
        content = "\n\n".join(part for part in (last["content"], calls) if part)
        return Reply(last.get("reasoning_content", ""), content)


class Materials(Protocol):
    """What tasks are made from besides chance."""

    @property
    def split(self) -> Split:
        """Which side of the train / held-out border examples must be on."""
        ...

    def prose(self, random: Random, tokens: int) -> str:
        """About `tokens` tokens of running text."""
        ...


Maker = Callable[[Random, Materials], Example]


def draw_effort(random: Random) -> Effort:
    """An effort in the proportions of training."""
    return random.choices(("none", "low", "medium", "xhigh"), (45, 15, 15, 25))[0]


def think(effort: Effort, brief: str, steps: str = "", check: str = "") -> str:
    """The reasoning of an effort: nothing, the brief line, the steps, or the steps and a check of them."""
    if effort == "none":
        return ""
    if effort == "low" or not steps:
        return brief
    return f"{steps} {check}" if effort == "xhigh" and check else steps


def answer(content: str, reasoning: str = "") -> Message:
    """An assistant turn."""
    turn = {"role": "assistant", "content": content}
    return turn | {"reasoning_content": reasoning} if reasoning else turn


def question(content: str, system: str = "") -> list[Message]:
    """A user turn, after a system turn if there is one."""
    turns: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*turns, {"role": "user", "content": content}]


def call_text(function: Mapping[str, Any]) -> str:
    """A call as the chat template writes it (spec/model.md §14.5)."""
    lines = []
    for key, value in function["arguments"].items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"<parameter={key}>\n{text}\n</parameter>\n")
    return f"<tool_call>\n<function={function['name']}>\n{''.join(lines)}</function>\n</tool_call>"


def ends_with_number(expected: int) -> Callable[[str], bool]:
    """A check: the last whole number of the content is `expected`."""

    def check(content: str) -> bool:
        numbers = re.findall(r"-?\d+", content)
        return bool(numbers) and int(numbers[-1]) == expected

    return check


def mentions(*expected: str) -> Callable[[str], bool]:
    """A check: every expected text occurs, whatever its case, and not as part of a longer word or number."""
    patterns = [re.compile(rf"(?<!\w){re.escape(text)}(?!\w)", re.IGNORECASE) for text in expected]
    return lambda content: all(pattern.search(content) for pattern in patterns)


def equals(expected: str) -> Callable[[str], bool]:
    """A check: the content is exactly this, white space around it aside."""
    return lambda content: content.strip() == expected.strip()
