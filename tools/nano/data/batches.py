"""Batches of packed rows, each a function of seed and number alone, whichever worker makes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from engine.text import Frontend
from tools.nano.data.corpus import Corpus, Prose, read_corpus, tokenizer_hash
from tools.nano.data.example import Maker, Split
from tools.nano.data.render import FolderResources, Rendered, Renderer
from tools.nano.data.tasks import LONG_LENGTHS, TASKS
from tools.nano.data.tasks.lookup import maker as lookup_maker
from tools.nano.tokenizer import FOLDER

CHUNK = 64


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """What batches are made of.

    Attributes:
        tokens: tokens a batch.
        row: length of packed rows, a multiple of 64.
        long_rows: lengths of rows that hold one document.
        long_share: how many batches have long rows.
        text_share: how many tokens of packed rows, and how many long rows, are free text.
        text_weight: loss weight of a token of free text; a token of an answer weighs 1.
        depth: draft steps that are trained.
        deep_rows: share of packed rows on which draft steps after the first are trained.
        tasks: shares of examples by task, of the table of tasks.
    """

    tokens: int = 65536
    row: int = 2048
    long_rows: tuple[int, ...] = LONG_LENGTHS
    long_share: float = 0.2
    text_share: float = 0.3
    text_weight: float = 0.5
    depth: int = 3
    deep_rows: float = 0.25
    tasks: tuple[tuple[str, float], ...] = tuple((name, task.share) for name, task in TASKS.items())


@dataclass(frozen=True)
class Targets:
    """Columns of a batch to learn from: flat places [N] in [B · L], the token to produce there, and its weight."""

    places: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor

    def to(self, device: torch.device) -> "Targets":
        """Copy to a device."""
        return Targets(*(part.to(device, non_blocking=True) for part in (self.places, self.labels, self.weights)))

    def pin_memory(self) -> "Targets":
        """Copy to memory that transfers read directly; the data loader calls this."""
        return Targets(self.places.pin_memory(), self.labels.pin_memory(), self.weights.pin_memory())


@dataclass(frozen=True)
class TokenBatch:
    """Rows [B, L] and what to learn from them.

    Attributes:
        token_ids: int64 [B, L].
        documents: int64 [B, L].
        whole_rows: each row is one document.
        deep_rows: leading rows on which later draft steps are run.
        following: targets of the model itself.
        drafts: targets of each draft step; places count in the rows that the step runs on.
    """

    token_ids: torch.Tensor
    documents: torch.Tensor
    whole_rows: bool
    deep_rows: int
    following: Targets
    drafts: tuple[Targets, ...]

    def to(self, device: torch.device) -> "TokenBatch":
        """Copy to a device without waiting."""
        return TokenBatch(
            self.token_ids.to(device, non_blocking=True),
            self.documents.to(device, non_blocking=True),
            self.whole_rows,
            self.deep_rows,
            self.following.to(device),
            tuple(targets.to(device) for targets in self.drafts),
        )

    def pin_memory(self) -> "TokenBatch":
        """See `Targets.pin_memory`."""
        return TokenBatch(
            self.token_ids.pin_memory(),
            self.documents.pin_memory(),
            self.whole_rows,
            self.deep_rows,
            self.following.pin_memory(),
            tuple(targets.pin_memory() for targets in self.drafts),
        )


class Rows:
    """Rows of one batch while they are filled."""

    def __init__(self, count: int, length: int, padding: int) -> None:
        self.tokens = np.full((count, length), padding, np.int64)
        self.documents = np.zeros((count, length), np.int64)
        self.weights = np.zeros((count, length), np.float32)
        self._next = 1

    def put(self, row: int, begin: int, tokens: npt.NDArray[np.uint16], weights: npt.NDArray[np.float32]) -> int:
        """Write a document and return where it ends."""
        end = begin + len(tokens)
        self.tokens[row, begin:end] = tokens
        self.weights[row, begin:end] = weights
        self.documents[row, begin:] = self._next  # what follows the last document of a row counts as its padding
        self._next += 1
        return end

    def batch(self, *, whole_rows: bool, depth: int, deep_rows: int) -> TokenBatch:
        """Close the rows."""
        return TokenBatch(
            torch.from_numpy(self.tokens),
            torch.from_numpy(self.documents),
            whole_rows,
            deep_rows,
            self._targets(1, len(self.tokens), 0),
            tuple(
                self._targets(2, len(self.tokens) if step == 1 else deep_rows, step - 1) for step in range(1, depth + 1)
            ),
        )

    def _targets(self, ahead: int, rows: int, after: int) -> Targets:
        """Columns whose document goes on for `ahead` tokens and began `after` columns before, at least."""
        documents, weights = self.documents[:rows], self.weights[:rows]
        length = documents.shape[1]
        good = (documents[:, ahead:] == documents[:, :-ahead]) & (weights[:, ahead:] > 0)
        if after:
            good[:, :after] = False
            good[:, after:] &= (documents[:, after:] == documents[:, :-after])[:, : length - ahead - after]
        row, column = np.nonzero(good)
        return Targets(
            torch.from_numpy(row * length + column),
            torch.from_numpy(self.tokens[row, column + ahead]),
            torch.from_numpy(weights[row, column + ahead]),
        )


class Batches(Dataset[TokenBatch]):
    """Endless numbered batches. Workers open the corpus for themselves on first use."""

    def __init__(self, corpus: Path, mixture: Mixture, *, seed: int, split: Split = "train") -> None:
        self.mixture = mixture
        self._folder = corpus
        self._seed = seed
        self._split: Split = split
        self._opened: tuple[Corpus, Prose, Renderer] | None = None

    def __getitem__(self, number: int) -> TokenBatch:
        """Make batch `number`."""
        mixture = self.mixture
        random = Random(f"{self._split} {self._seed} batch {number}")
        if mixture.long_rows and random.random() < mixture.long_share:
            return self._long(random, random.choice(mixture.long_rows))
        return self._packed(random)

    def _open(self) -> tuple[Corpus, Prose, Renderer]:
        if self._opened is None:
            corpus = read_corpus(self._folder, self._split, tokenizer_hash(FOLDER))
            frontend = Frontend.load(FolderResources())
            self._opened = corpus, Prose(corpus, frontend, self._split), Renderer(frontend)
        return self._opened

    def _packed(self, random: Random) -> TokenBatch:
        corpus, prose, renderer = self._open()
        mixture = self.mixture
        count = max(mixture.tokens // mixture.row, 1)
        rows = Rows(count, mixture.row, 0)
        names, shares = zip(*mixture.tasks, strict=True)
        written = text = 0
        waiting: Rendered | None = None
        for row in range(count):
            place = 0
            while (left := mixture.row - place) > 0:
                if waiting is None and text >= mixture.text_share * written:
                    example = TASKS[random.choices(names, shares)[0]].make(random, prose)
                    waiting = renderer.render(example)
                    if len(waiting.token_ids) > mixture.row:
                        waiting = None
                        continue
                if waiting is not None and len(waiting.token_ids) <= left:
                    length = len(waiting.token_ids)
                    place = rows.put(row, place, waiting.token_ids, waiting.target.astype(np.float32))
                    waiting = None
                else:
                    # Free text: its turn has come, or the example does not fit and waits for the next row.
                    length = left if waiting is not None else min(left, random.randint(200, 1000))
                    tokens = corpus.slice(random, length)
                    length = len(tokens)
                    place = rows.put(row, place, tokens, np.full(length, mixture.text_weight, np.float32))
                    text += length
                written += length
        return rows.batch(whole_rows=False, depth=mixture.depth, deep_rows=max(round(count * mixture.deep_rows), 1))

    def _long(self, random: Random, length: int) -> TokenBatch:
        corpus, prose, renderer = self._open()
        mixture = self.mixture
        count = max(mixture.tokens // length, 1)
        rows = Rows(count, length, 0)
        make: Maker = lookup_maker("lookup", length // 2, length * 9 // 10, questions=12)
        for row in range(count):
            if random.random() < mixture.text_share:
                tokens = corpus.slice(random, length)
                rows.put(row, 0, tokens, np.full(len(tokens), mixture.text_weight, np.float32))
                continue
            rendered = renderer.render(make(random, prose))
            # A text may come out longer than asked for; what is cut off then are the last answers.
            rows.put(row, 0, rendered.token_ids[:length], rendered.target[:length].astype(np.float32))
        return rows.batch(whole_rows=True, depth=1, deep_rows=0)


def held_out_examples(
    corpus: Path, makers: Mapping[str, Maker], count: int, seed: int
) -> tuple[Renderer, dict[str, list[Rendered]]]:
    """`count` rendered examples a task that training never sees, whatever its seed."""
    renderer, prose = open_held_out(corpus)
    return renderer, {
        name: [renderer.render(make(Random(f"held-out {seed} {name} {item}"), prose)) for item in range(count)]
        for name, make in makers.items()
    }


def open_held_out(corpus: Path) -> tuple[Renderer, Prose]:
    """Renderer and materials of the held-out split."""
    frontend = Frontend.load(FolderResources())
    return Renderer(frontend), Prose(read_corpus(corpus, "held-out", tokenizer_hash(FOLDER)), frontend, "held-out")


def pack_examples(examples: Sequence[Rendered], row: int) -> tuple[TokenBatch, list[slice]]:
    """Examples in rows of `row` tokens, one behind the other; also the flat places of each, for reading results."""
    places: list[tuple[int, int]] = []
    current = used = 0
    for example in examples:
        if used + len(example.token_ids) > row:
            current, used = current + 1, 0
        places.append((current, used))
        used += len(example.token_ids)
    rows = Rows(current + 1, row, 0)
    for example, (number, begin) in zip(examples, places, strict=True):
        rows.put(number, begin, example.token_ids, example.target.astype(np.float32))
    spans = [
        slice(number * row + begin, number * row + begin + len(example.token_ids))
        for example, (number, begin) in zip(examples, places, strict=True)
    ]
    return rows.batch(whole_rows=False, depth=3, deep_rows=current + 1), spans
