"""A file cut into chunks: the unit of transfer, of the journal, of digests and of repair."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 16 * 1024 * 1024
SMALLEST_CHUNK = 64 * 1024
LARGEST_CHUNK = 64 * 1024 * 1024
_BLOCK_BYTES = 4 * 1024 * 1024
_LIST_HEAD = re.compile(r"chunk_bytes (\d+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Layout:
    """How `total` bytes are cut: every chunk has `chunk_bytes` except the last."""

    total: int
    chunk_bytes: int

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.total // self.chunk_bytes)

    def range(self, chunk: int) -> tuple[int, int]:
        """Byte range [begin, end) of a chunk."""
        begin = chunk * self.chunk_bytes
        return begin, min(begin + self.chunk_bytes, self.total)

    def size(self, chunk: int) -> int:
        """Bytes of a chunk."""
        begin, end = self.range(chunk)
        return end - begin

    def named(self, chunks: Sequence[int]) -> str:
        """The byte ranges of ascending `chunks` in words, neighbours joined: `bytes 0-99, 200-299`."""
        joined: list[tuple[int, int]] = []
        for chunk in chunks:
            begin, end = self.range(chunk)
            if joined and joined[-1][1] == begin:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((begin, end))
        shown = ", ".join(f"{begin}-{end - 1}" for begin, end in joined[:8])
        return f"bytes {shown}" + (f" and {len(joined) - 8} more ranges" if len(joined) > 8 else "")


@dataclass(frozen=True)
class Digests:
    """SHA-256 of a whole file and of each of its chunks, lower-case hex."""

    whole: str
    chunks: tuple[str, ...]


def read_digests(path: Path, chunk_bytes: int, progress: Progress = no_progress) -> Digests:
    """Hash a file once, as a whole and by chunk; `progress(done, total)` in bytes.

    Raises:
        OSError: the file cannot be read.
    """
    layout = Layout(path.stat().st_size, chunk_bytes)
    whole = hashlib.sha256()
    chunks: list[str] = []
    done = 0
    with path.open("rb") as file:
        for chunk in range(layout.count):
            digest, left = hashlib.sha256(), layout.size(chunk)
            while left and (block := file.read(min(left, _BLOCK_BYTES))):
                whole.update(block)
                digest.update(block)
                left -= len(block)
                done += len(block)
                progress(done, layout.total)
            chunks.append(digest.hexdigest())
    return Digests(whole.hexdigest(), tuple(chunks))


def format_chunk_list(chunk_bytes: int, digests: Sequence[str]) -> str:
    """The text of a chunk file: `chunk_bytes N`, then one digest a line."""
    return "\n".join((f"chunk_bytes {chunk_bytes}", *digests)) + "\n"


def parse_chunk_list(text: str, total: int) -> tuple[int, tuple[str, ...]]:
    """`chunk_bytes` and the digests of a chunk file for an artifact of `total` bytes.

    Raises:
        ValueError: what is wrong with it.
    """
    head, *lines = text.splitlines() or [""]
    match = _LIST_HEAD.fullmatch(head)
    if match is None:
        raise ValueError(f"the first line is {head!r}, not 'chunk_bytes N'")
    chunk_bytes = check_chunk_bytes(int(match[1]))
    wanted = Layout(total, chunk_bytes).count
    if len(lines) != wanted:
        raise ValueError(f"{len(lines)} digests, and {total} bytes have {wanted} chunks of {chunk_bytes}")
    for line in lines:
        if not _SHA256.fullmatch(line):
            raise ValueError(f"{line!r} is not a SHA-256 in lower-case hex")
    return chunk_bytes, tuple(lines)


def check_chunk_bytes(value: int) -> int:
    """`value`, if chunks may be that large.

    Raises:
        ValueError: they may not.
    """
    if not SMALLEST_CHUNK <= value <= LARGEST_CHUNK:
        raise ValueError(f"chunk_bytes is {value}, not from {SMALLEST_CHUNK} to {LARGEST_CHUNK}")
    return value
