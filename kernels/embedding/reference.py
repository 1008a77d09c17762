"""Plain torch form of the embedding gather."""

import torch
from torch.nn import functional


def embedding(token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of `table` [V, H] for int64 ids [T]: [T, H] in the table's dtype, unscaled (spec/model.md §7).

    Raises:
        IndexError: an id lies outside the table (CPU).
    """
    return functional.embedding(token_ids, table)
