"""The ledger: what was planned beside what was measured, one row a component, in bytes.

The formulas are those of spec/memory-and-fit.md §1.2, for the pools this engine has.
"""

import bisect
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from engine.artifact.config import TextConfig
from engine.memory.pages import PAGE_TOKENS


@dataclass
class Ledger:
    """Rows `component → (planned, measured)`. `meter` says how many bytes this process holds now."""

    meter: Callable[[], int]
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    _mark: int = 0

    def start(self) -> None:
        """What is held now belongs to nobody; the next row counts from here."""
        self._mark = self.meter()

    def close_row(self, component: str, planned: int) -> None:
        """Everything taken since the last row is `component`'s."""
        held = self.meter()
        self.rows[component] = (planned, max(0, held - self._mark))
        self._mark = held

    def planned(self) -> int:
        """Bytes planned in all rows."""
        return sum(planned for planned, _ in self.rows.values())


@dataclass(frozen=True, kw_only=True)
class RuntimeSizes:
    """What the runtime reservation depends on, besides the model. `pages` of the pool, `lanes`, tokens of the longest
    request and of a chunk, ids that can be sampled, and bytes an element of the KV cache, the recurrent state, and
    activations (also of the convolution history)."""

    pages: int
    lanes: int
    max_context: int
    prefill_chunk: int
    token_count: int
    kv_element: int = 2
    state_element: int = 4
    column_element: int = 4


@dataclass(frozen=True, kw_only=True)
class RuntimePlan:
    """Bytes of the runtime reservation: everything but the weights."""

    kv_pages: int
    state_images: int
    token_counts: int
    workspace: int

    @property
    def total(self) -> int:
        """The whole reservation."""
        return self.kv_pages + self.state_images + self.token_counts + self.workspace


def plan_runtime(config: TextConfig, sizes: RuntimeSizes) -> RuntimePlan:
    """What the pools and the deepest step take."""
    return RuntimePlan(
        kv_pages=sizes.pages * page_bytes(config, sizes.kv_element),
        state_images=sizes.lanes * state_image_bytes(config, sizes.state_element, sizes.column_element),
        token_counts=sizes.lanes * sizes.token_count * np.dtype(np.int32).itemsize,
        workspace=workspace_bytes(config, sizes),
    )


def page_bytes(config: TextConfig, element: int) -> int:
    """One page: keys and values of 64 tokens in every attention layer."""
    return len(config.attention_layers) * 2 * config.key_value_size * element * PAGE_TOKENS


def state_image_bytes(config: TextConfig, state_element: int, history_element: int) -> int:
    """One state image: per DeltaNet layer, key × value per value head, and `kernel - 1` columns of history."""
    recurrent = config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim
    history = config.conv_channels * (config.linear_conv_kernel_dim - 1)
    return len(config.linear_layers) * (recurrent * state_element + history * history_element)


def workspace_bytes(config: TextConfig, sizes: RuntimeSizes) -> int:
    """Scratch of the plain-torch ops at the deepest chunk: the last of a full context.

    Attention reads keys and values as activations (a gathered copy and a converted one) and makes a mask
    `[chunk · group, context]`, boolean and then float32; a layer holds a few rows of its widest matrix; sampling holds
    a few float32 and int64 rows of logits.
    """
    columns = min(sizes.prefill_chunk, sizes.max_context)
    group = config.num_attention_heads // config.num_key_value_heads
    copies = 2 * sizes.max_context * config.key_value_size * (sizes.kv_element + sizes.column_element)
    mask = columns * sizes.max_context * (1 + group * (1 + 4))
    attention_rows = 2 * (config.query_size + config.key_value_size)
    linear_rows = config.conv_channels + 2 * config.linear_value_size
    wide = config.intermediate_size
    if wide is None and config.experts is not None:
        wide = config.experts.per_token * config.experts.intermediate_size
    activations = columns * (4 * config.hidden_size + 3 * max(attention_rows, linear_rows, 2 * (wide or 0)))
    logits = sizes.lanes * sizes.token_count * (3 * 4 + 3 * 8)
    return copies + mask + activations * sizes.column_element + logits


def largest_context(config: TextConfig, sizes: RuntimeSizes, budget: int) -> int:
    """The longest `max_context`, in whole pages, whose reservation with a pool of the same size is within `budget`
    bytes; 0 when none is."""

    def fits(pages: int) -> bool:
        smaller = dataclasses.replace(sizes, pages=max(pages, sizes.lanes), max_context=pages * PAGE_TOKENS)
        return plan_runtime(config, smaller).total <= budget

    most = -(-sizes.max_context // PAGE_TOKENS)
    return bisect.bisect_left(range(1, most + 1), True, key=lambda pages: not fits(pages)) * PAGE_TOKENS
