"""The free text as it travels: token ids of both splits, compressed, and where documents end."""

import hashlib
import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.text import Frontend
from tools.nano.data.example import Split

Tokens = npt.NDArray[np.uint16]

SPLITS: tuple[Split, Split] = ("train", "held-out")


@dataclass(frozen=True)
class Corpus:
    """Documents of one split behind each other, each ended by <|endoftext|>."""

    tokens: Tokens

    def slice(self, random: Random, length: int) -> Tokens:
        """`length` tokens from anywhere (all of them, if there are fewer)."""
        begin = random.randrange(max(len(self.tokens) - length, 1))
        return self.tokens[begin : begin + length]


class Prose:
    """Materials for tasks: text of one split of the corpus."""

    def __init__(self, corpus: Corpus, frontend: Frontend, split: Split) -> None:
        self._corpus = corpus
        self._bytes = frontend.vocabulary
        self._end = frontend.vocabulary.index(b"<|endoftext|>")
        self.split = split

    def prose(self, random: Random, tokens: int) -> str:
        """About `tokens` tokens of the corpus; documents are parted by a blank line."""
        ids = self._corpus.slice(random, tokens).tolist()
        text = b"".join(b"\n\n" if token == self._end else self._bytes[token] for token in ids)
        return text.decode(errors="ignore").strip()


def tokenizer_hash(folder: Path) -> str:
    """Digest of the tokenizer that token ids belong to."""
    return hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()


def write_corpus(folder: Path, splits: dict[Split, Sequence[Tokens]], record: dict[str, Any]) -> None:
    """Write the documents of both splits, which must end with <|endoftext|>, and the record of their making."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, documents in splits.items():
        tokens = np.concatenate(documents).astype("<u2")
        (folder / f"{split}.tokens.xz").write_bytes(lzma.compress(tokens.tobytes(), preset=6))
        record = record | {split: {"documents": len(documents), "tokens": len(tokens)}}
    (folder / "corpus.json").write_text(json.dumps(record, indent=2))


def read_corpus(folder: Path, split: Split, tokenizer: str) -> Corpus:
    """Read one split.

    Raises:
        ValueError: it was made with another tokenizer than the one with hash `tokenizer`.
    """
    record = json.loads((folder / "corpus.json").read_text())
    if record["tokenizer"] != tokenizer:
        raise ValueError(f"{folder} was made with another tokenizer; run python -m tools.nano.data.prepare again")
    return Corpus(np.frombuffer(lzma.decompress((folder / f"{split}.tokens.xz").read_bytes()), "<u2"))
