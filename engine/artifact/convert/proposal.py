"""Choosing the rows of the proposal head: the tokens that a draft will most often want (spec/artifact.md §5.3)."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.artifact import Artifact
from engine.artifact.convert.sources import CheckpointError
from engine.exits import ArtifactError, ConfigurationError

TokenIds = npt.NDArray[np.int32]


def read_ranking(path: Path, vocab_size: int) -> npt.NDArray[np.int64]:
    """How often each token was the likeliest: the first row, int64 [vocab_size], of a file of such rows.

    Raises:
        CheckpointError: the file is not whole rows, or holds a negative count.
    """
    try:
        size = path.stat().st_size
        if not size or size % (8 * vocab_size):
            raise CheckpointError(f"{path} has {size} bytes, which are not rows of {vocab_size} 64-bit counts")
        counts = np.fromfile(path, "<i8", vocab_size)
    except OSError as error:
        raise CheckpointError(f"ranking {path} cannot be read: {error.strerror}") from None
    if (counts < 0).any():
        raise CheckpointError(f"{path}: the count of token {int(np.flatnonzero(counts < 0)[0])} is negative")
    return counts


def rank_tokens(counts: npt.NDArray[np.int64], token_count: int, forced: Collection[int], rows: int) -> TokenIds:
    """The `rows` most frequent of the first `token_count` tokens, all `forced` ones among them, most frequent first.

    Raises:
        ConfigurationError: there are fewer tokens than rows.
    """
    if not 0 < rows <= token_count:
        raise ConfigurationError(f"a proposal head of {rows} rows cannot be chosen from {token_count} tokens")
    c = counts[:token_count]
    must = np.array(sorted(forced), np.int64)
    if len(must) >= rows:
        picked = must[np.argsort(-c[must], kind="stable")][:rows]
        return picked.astype(np.int32)
    order = np.argsort(-c, kind="stable")
    free = order[~np.isin(order, must)][: rows - len(must)]
    chosen = np.concatenate([free, must])
    return chosen[np.argsort(-c[chosen], kind="stable")].astype(np.int32)


def read_token_ids(path: Path, token_count: int) -> TokenIds:
    """The token ids of the proposal head of another artifact.

    Raises:
        ArtifactError: it has none, or they are not ids of this tokenizer, each once.
    """
    with Artifact.open(path) as artifact:
        ids = artifact.values("proposal/token_ids").reshape(-1)
    if ids.dtype != np.int32 or ids.min() < 0 or ids.max() >= token_count or len(np.unique(ids)) != ids.size:
        raise ArtifactError(f"{path}: proposal/token_ids are not ids below {token_count}, each once")
    return np.asarray(ids, np.int32)
