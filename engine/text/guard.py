"""Keeps the spelling of control tokens in user text from becoming control tokens (spec/cases.md X10).

Before rendering, the first character of every spelling that could begin in user text is replaced by a placeholder,
one private-use character for each, that occurs nowhere in the request. Control tokens are then cut out of the rendered
text, so only what the template wrote itself can match, and `reveal` puts the characters back. A replacement is one
character for one, so trimming, searching, slicing and measuring in the template work as before. Because the character
itself is replaced, spellings stay broken even when the template joins, trims or lower-cases pieces of user text.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from engine.text.errors import PromptError

_PRIVATE_USE = range(0xF0000, 0x10FFFE)


class Guard:
    """Placeholders for one request. `control` are the spellings, `values` everything the user supplied."""

    def __init__(self, control: Sequence[str], values: Iterable[Any]) -> None:
        """Choose placeholders.

        Raises:
            PromptError: the request uses every private-use character there is.
        """
        # A spelling that begins like a word (a letter would be part of roles and field names) is broken only whole.
        marks = sorted({text[0] for text in control if not _begins_word(text)})
        words = sorted((text for text in control if _begins_word(text)), key=len, reverse=True)
        letters = sorted({text[0] for text in words})
        used: set[str] = set()
        for text in _strings(values):
            if not text.isascii():
                used.update(text)
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        try:
            self._marks = [(mark, next(free)) for mark in marks]
            self._letters = {letter: next(free) for letter in letters}
        except StopIteration:
            raise PromptError("invalid_prompt", "the request uses every private-use character of Unicode") from None
        self._words = re.compile("|".join(map(re.escape, words))) if words else None

    def hide(self, value: Any) -> Any:
        """Copy of a JSON-like value with every string, keys too, made harmless."""
        if isinstance(value, str):
            return self._hide_text(value)
        if isinstance(value, Mapping):
            return {self._hide_text(key) if isinstance(key, str) else key: self.hide(v) for key, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        if value is None or isinstance(value, int | float):
            return value
        raise TypeError(f"{type(value).__name__} is not JSON data")  # unknown objects could carry text past the guard

    def reveal(self, text: str) -> str:
        """Put the hidden characters of ordinary text back."""
        for mark, placeholder in (*self._marks, *self._letters.items()):
            text = text.replace(placeholder, mark)
        return text

    def _hide_text(self, text: str) -> str:
        for mark, placeholder in self._marks:
            text = text.replace(mark, placeholder)
        if self._words is not None:
            text = self._words.sub(lambda found: self._letters[found[0][0]] + found[0][1:], text)
        return text


def _begins_word(text: str) -> bool:
    return text[0].isalnum() or text[0] in "_ "


def _strings(values: Iterable[Any]) -> Iterator[str]:
    # An explicit stack: depth of user data must not decide how deep Python recurses here.
    stack = list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            stack.extend(value)
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(value)
