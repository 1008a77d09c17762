"""Cutting a stream of tokens into windows that a model reads from empty state."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.exits import ConfigurationError


@dataclass(frozen=True)
class Window:
    """Tokens `[begin, end)` of a stream are read; those from `first` on are scored."""

    begin: int
    end: int
    first: int

    @property
    def targets(self) -> int:
        """Scored tokens."""
        return self.end - self.first


def sliding(tokens: int, context: int, stride: int) -> Iterator[Window]:
    """Windows that score every token but the first of a stream exactly once (spec/cli.md §3).

    The first window scores what it reads; each later one scores up to `stride` new tokens behind `context - stride`
    tokens of context. A stream of one token has no window.
    """
    end = min(context, tokens)
    if end > 1:
        yield Window(0, end, 1)
    while end < tokens:
        begin, first = end - (context - stride), end
        end = min(end + stride, tokens)
        yield Window(begin, end, first)


def blocks(token_ids: Sequence[int], context: int) -> Iterator[list[int]]:
    """Windows of `context` tokens one behind the other; a last one of a single token is left out."""
    for begin in range(0, len(token_ids), context):
        window = list(token_ids[begin : begin + context])
        if len(window) > 1:
            yield window


def read_text(path: Path) -> str:
    """A file of UTF-8 text.

    Raises:
        ConfigurationError: it cannot be read, is not UTF-8, or is empty.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8: byte {error.start}") from None
    if not text:
        raise ConfigurationError(f"{path} is empty")
    return text
