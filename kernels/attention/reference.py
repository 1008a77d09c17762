"""Plain torch form of attention over pages (spec/model.md §4.1).

A cache plane is [pages, 64, KV heads, D]. A lane's tokens lie in its pages in order, so token p is row
`pages[p // 64] * 64 + p % 64` of the flattened plane. Rows of consecutive pages are a slice, which reads in place;
other rows are an index tensor, which gathers a copy.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

PAGE_TOKENS = 64
# Long prefills go in blocks of columns: the mask stays small, and later keys are not scored for earlier columns.
BLOCK_COLUMNS = 256

Rows = slice | torch.Tensor


def cache_rows(pages: Sequence[int], begin: int, end: int, device: torch.device) -> Rows:
    """Rows of tokens begin <= p < end of the lane that owns `pages`."""
    used = pages[begin // PAGE_TOKENS : -(-end // PAGE_TOKENS)]
    skipped = begin // PAGE_TOKENS * PAGE_TOKENS
    if all(page == used[0] + index for index, page in enumerate(used)):
        first = used[0] * PAGE_TOKENS - skipped
        return slice(first + begin, first + end)
    starts = torch.tensor(used, dtype=torch.int64, device=device) * PAGE_TOKENS
    rows = (starts.unsqueeze(1) + torch.arange(PAGE_TOKENS, device=device)).flatten()
    return rows[begin - skipped : end - skipped]


def append(plane: torch.Tensor, rows: Rows, columns: torch.Tensor) -> None:
    """Write columns [W, KV heads, D] to rows of a plane, in place, rounded to the plane's dtype."""
    plane.view(-1, *plane.shape[2:])[rows] = columns.to(plane.dtype)


def history(plane: torch.Tensor, rows: Rows, dtype: torch.dtype) -> torch.Tensor:
    """What the cache holds at rows: [S, KV heads, D]. A view where rows are a slice and dtypes agree."""
    return plane.view(-1, *plane.shape[2:])[rows].to(dtype)


def causal_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Softmax attention of the last W tokens of one lane, times sigmoid of the output gate.

    query [W, Hq, D]; keys and values [S, Hkv, D] with S >= W, the columns' own included: column j sees tokens
    0 .. S - W + j. Query head n uses key head n // (Hq / Hkv). The scale is 1 / sqrt(D). gate [W, Hq, D]. Returns
    [W, Hq, D] in query's dtype; softmax and sums are float32 or better.
    """
    width, before = query.shape[0], keys.shape[0] - query.shape[0]
    blocks = []
    for begin in range(0, width, BLOCK_COLUMNS):
        end = min(begin + BLOCK_COLUMNS, width)
        blocks.append(_attend(query[begin:end], keys[: before + end], values[: before + end]))
    mixed = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
    wide = torch.promote_types(query.dtype, torch.float32)
    return (mixed.to(wide) * gate.to(wide).sigmoid()).to(query.dtype)


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    width, heads, dim = query.shape
    tokens, key_heads, _ = keys.shape
    group = heads // key_heads
    # The query heads of one key head become rows of one matrix, so that keys are never repeated.
    rows = query.view(width, key_heads, group, dim).transpose(0, 1).reshape(1, key_heads, width * group, dim)
    visible = None
    if width > 1:
        visible = torch.ones(width, tokens, dtype=torch.bool, device=query.device).tril(tokens - width)
        visible = visible.repeat_interleave(group, dim=0)
    mixed = functional.scaled_dot_product_attention(
        rows, keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0), attn_mask=visible
    )
    return mixed.view(key_heads, width, group, dim).transpose(0, 1).reshape(width, heads, dim)
