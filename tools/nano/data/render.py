"""Examples as token ids, through the artifact's own tokenizer and chat template: training text equals serving text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.text import Frontend
from tools.nano.data.example import Example
from tools.nano.tokenizer import FOLDER


class FolderResources:
    """Text resources of a folder, in the place of an artifact."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    def resource(self, component: str, role: str, /) -> bytes:
        """Bytes of the file called `role`."""
        return (self._folder / role).read_bytes()


@dataclass(frozen=True)
class Rendered:
    """Token ids of a whole conversation; `target[t]` says that the model must learn to produce token t."""

    token_ids: npt.NDArray[np.uint16]
    target: npt.NDArray[np.bool_]


class Renderer:
    """Renders conversations and finds in them what the assistant itself wrote."""

    def __init__(self, frontend: Frontend) -> None:
        self.frontend = frontend
        head = frontend.prepare([{"role": "user", "content": "?"}], enable_thinking=True).token_ids
        # The generation prompt that every answer stands behind: <|im_start|>assistant\n<think>\n
        start = len(head) - 1 - head[::-1].index(_id(frontend, "<|im_start|>"))
        self._head = head[start:]
        self._close = _id(frontend, "</think>")
        self._end = _id(frontend, "<|im_end|>")

    def prompt(self, example: Example) -> list[int]:
        """The question, ready for an answer."""
        return self.frontend.prepare(example.messages[:-1], tools=example.tools or None, **_options(example)).token_ids

    def render(self, example: Example) -> Rendered:
        """The whole conversation; every assistant turn is a target, from behind its generation prompt to its end."""
        ids = self.frontend.prepare(
            example.messages, tools=example.tools or None, add_generation_prompt=False, **_options(example)
        ).token_ids
        target = np.zeros(len(ids), np.bool_)
        head, place = self._head, 0
        while (place := _find(ids, head[:-1], place)) >= 0:
            # With thinking off, the prompt ends behind the empty think block and its blank line.
            begin = place + len(head) if example.thinks else ids.index(self._close, place) + 2
            place = ids.index(self._end, begin) + 1
            target[begin:place] = True
        return Rendered(np.array(ids, np.uint16), target)


def _options(example: Example) -> dict[str, Any]:
    return {"reasoning_effort": example.effort} if example.thinks else {"enable_thinking": False}


def _id(frontend: Frontend, text: str) -> int:
    return frontend.vocabulary.index(text.encode())


def _find(ids: Sequence[int], pattern: Sequence[int], begin: int) -> int:
    """Place of `pattern` in `ids` from `begin` on, or -1."""
    while True:
        try:
            begin = ids.index(pattern[0], begin)
        except ValueError:
            return -1
        if ids[begin : begin + len(pattern)] == list(pattern):
            return begin
        begin += 1
