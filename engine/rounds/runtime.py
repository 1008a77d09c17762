"""Everything on the device that rounds use, reserved once."""

from dataclasses import dataclass
from typing import Any

import torch

from engine.rounds.model import Model
from engine.rounds.sampling import Sampler


@dataclass(frozen=True)
class Runtime:
    """A model with its pools and the sampler. Nothing here is allocated again after the boot has reserved it."""

    model: Model
    pools: Any
    sampler: Sampler
    device: torch.device
    # Whether a round runs all its lanes in one forward pass. On the CPU it must not: the matrix library takes another
    # order of sums for another number of rows, so a request's numbers would depend on its neighbours. One lane at a
    # time costs little there, at the sizes the CPU runs, and makes every request reproducible to the bit.
    columns_together: bool

    def start_lane(self, slot: int, generated: list[int]) -> None:
        """A request takes `slot`: zero its state image and its counts. `generated` is not empty after a pause."""
        self.model.reset_state(self.pools, slot)
        self.sampler.start(slot, generated)
