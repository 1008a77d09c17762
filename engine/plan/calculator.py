"""The fit question for a card that is not here: does it fit, and how long a context would (spec/memory-and-fit.md §3).

One lane, one state image, no headroom; an operating system reserve stands for everything else on the card.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from engine.plan.constants import GIB, REFERENCE, Constants
from engine.plan.geometry import PAGE_TOKENS, Geometry
from engine.plan.reservation import reservation
from engine.plan.settings import Settings

Verdict = Literal["fits", "tight", "does not fit"]
TIGHT_BYTES = GIB // 2


@dataclass(frozen=True, kw_only=True)
class Calculator:
    """One model, one configuration, one card."""

    geometry: Geometry
    settings: Settings
    weight_bytes: int
    card_bytes: int = 24 * GIB
    reserve_bytes: int = 0
    constants: Constants = REFERENCE

    def left(self, max_context: int) -> int:
        """Bytes left on the card at `max_context`; negative when it does not fit."""
        alone = dataclasses.replace(self.settings, device_state_slots=0)
        need = reservation(self.geometry, alone, self.constants, max_context=max_context, lanes=1)
        return self.card_bytes - self.reserve_bytes - self.weight_bytes - need.minimum_bytes

    def verdict(self, max_context: int) -> Verdict:
        """`tight` is less than half a GiB left."""
        left = self.left(max_context)
        return "does not fit" if left < 0 else "tight" if left < TIGHT_BYTES else "fits"

    def longest_context(self) -> int:
        """The longest context that fits, a whole number of pages; 0 when none does.

        The graph allowance steps up with context, so the answer is searched, not solved for: bytes never fall as
        context grows.
        """
        low, high = 0, self.geometry.max_positions // PAGE_TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.left(middle * PAGE_TOKENS) >= 0 else (low, middle - 1)
        return low * PAGE_TOKENS
