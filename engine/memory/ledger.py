"""The ledger: what was planned beside what was measured, one row a component, in bytes.

The formulas are those of spec/memory-and-fit.md §1.2, for the pools this engine has.
"""

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


@dataclass(frozen=True)
class RuntimePlan:
    """Bytes of the runtime reservation: everything but the weights."""

    kv_pages: int
    state_images: int
    token_counts: int

    @property
    def total(self) -> int:
        """The whole reservation."""
        return self.kv_pages + self.state_images + self.token_counts


def plan_runtime(
    config: TextConfig,
    *,
    pages: int,
    states: int,
    token_count: int,
    kv_bytes: int = 2,
    state_bytes: int = 4,
    history_bytes: int = 4,
) -> RuntimePlan:
    """What `pages` KV pages, `states` state images and as many rows of token counts take.

    `kv_bytes`, `state_bytes` and `history_bytes` are bytes an element of the KV cache, of the recurrent state and of
    the convolution history.
    """
    return RuntimePlan(
        kv_pages=pages * page_bytes(config, kv_bytes),
        state_images=states * state_image_bytes(config, state_bytes, history_bytes),
        token_counts=states * token_count * np.dtype(np.int32).itemsize,
    )


def page_bytes(config: TextConfig, element: int) -> int:
    """One page: keys and values of 64 tokens in every attention layer."""
    return len(config.attention_layers) * 2 * config.key_value_size * element * PAGE_TOKENS


def state_image_bytes(config: TextConfig, state_element: int, history_element: int) -> int:
    """One state image: per DeltaNet layer, key × value per value head, and `kernel - 1` columns of history."""
    recurrent = config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim
    history = config.conv_channels * (config.linear_conv_kernel_dim - 1)
    return len(config.linear_layers) * (recurrent * state_element + history * history_element)
