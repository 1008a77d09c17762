"""What Markdown quotes: marks inside fenced blocks and inline code are examples, not calls (spec/serving.md §6.5)."""

import re
from collections.abc import Iterator

_FENCE = re.compile(r"[ \t>]*(?:[-*+][ \t]+|\d{1,9}[.)][ \t]+)?(`{3,}|~{3,})")
_BACKTICKS = re.compile(r"`+")

Fence = str | None
"""The run of characters that opened the fenced block we are in; None: outside."""


def unquoted(text: str, mark: re.Pattern[str], fence: Fence, *, final: bool) -> Iterator[tuple[int, bool]]:
    """Where `mark`, which matches no newline, stands outside of code, and whether that is certain.

    `text` begins at the start of a line. Unless `final`, more text may follow; then an inline code span before the mark
    may yet be closed.
    """
    for begin, end, complete in _lines(text, final=final):
        # A mark on the line that opens a fence belongs to the fence.
        if (
            fence is None
            and mark.search(text, begin, end) is not None
            and not _opens_fence(text, begin, end, complete=complete)
        ):
            yield from _outside_spans(text, mark, begin, end, complete=complete)
        fence = _after_line(text, begin, end, fence) if complete else fence


def in_fence(text: str, fence: Fence) -> bool:
    """Whether what follows `text`, on its last and unfinished line too, is certain to stand in a fenced block."""
    begin = text.rfind("\n") + 1
    _, fence = skip_lines(text, begin, fence)
    return fence is not None or _opens_fence(text, begin, len(text), complete=False)


def skip_lines(text: str, upto: int, fence: Fence) -> tuple[int, Fence]:
    """The last start of a line that is not after `upto`, and the fence in force there."""
    start = text.rfind("\n", 0, upto) + 1
    for begin, end, complete in _lines(text[:start], final=False):
        if complete:
            fence = _after_line(text, begin, end, fence)
    return start, fence


def _lines(text: str, *, final: bool) -> Iterator[tuple[int, int, bool]]:
    begin = 0
    while (end := text.find("\n", begin)) >= 0:
        yield begin, end, True
        begin = end + 1
    if begin < len(text):
        yield begin, len(text), final


def _after_line(text: str, begin: int, end: int, fence: Fence) -> Fence:
    found = _FENCE.match(text, begin, end)
    if found is None:
        return fence
    if fence is None:
        return found[1] if _opens_fence(text, begin, end, complete=True) else None
    closes = found[1].startswith(fence) and not text[found.end() : end].strip()
    return None if closes else fence


def _opens_fence(text: str, begin: int, end: int, *, complete: bool) -> bool:
    found = _FENCE.match(text, begin, end)
    if found is None:
        return False
    # After backticks the line must hold no other one, else it is inline code; so only the whole line tells.
    return found[1][0] == "~" or (complete and text.find("`", found.end(), end) < 0)


def _outside_spans(
    text: str, mark: re.Pattern[str], begin: int, end: int, *, complete: bool
) -> Iterator[tuple[int, bool]]:
    """Code spans end on their line: models do not wrap them, and a stray backtick must not swallow a call."""
    spans: list[tuple[int, int]] = []
    runs = [run.span() for run in _BACKTICKS.finditer(text, begin, end)]
    if not complete and runs and runs[-1][1] == end:
        runs.pop()  # it may grow, so it is not known yet what it closes
    certain_upto = end
    index = 0
    while index < len(runs):
        opened, inside = runs[index]
        length = inside - opened
        closing = (later for later in range(index + 1, len(runs)) if runs[later][1] - runs[later][0] == length)
        if (close := next(closing, None)) is not None:
            spans.append((opened, runs[close][1]))
            index = close + 1
        elif complete:
            index += 1
        else:
            certain_upto = opened
            break
    for found in mark.finditer(text, begin, end):
        if not any(opened < found.start() < closed for opened, closed in spans):
            yield found.start(), found.start() < certain_upto
