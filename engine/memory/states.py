"""State images: one slot of recurrent and convolution state a lane. Pure bookkeeping: no tensors here."""

from engine.memory.pages import AccountingError


class StatePool:
    """`capacity` slots with ids 0 to `capacity - 1`; the lowest free slot is taken first."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a pool needs at least one slot, got {capacity}")
        self.capacity = capacity
        self._taken: set[int] = set()

    @property
    def allocated(self) -> int:
        """Slots in use."""
        return len(self._taken)

    @property
    def free(self) -> int:
        """Slots that can be taken."""
        return self.capacity - len(self._taken)

    def take(self) -> int | None:
        """A slot, or None when all are in use."""
        for slot in range(self.capacity):
            if slot not in self._taken:
                self._taken.add(slot)
                return slot
        return None

    def give_back(self, slot: int) -> None:
        """Free a slot.

        Raises:
            AccountingError: it is not in use.
        """
        if slot not in self._taken:
            raise AccountingError(f"state slot {slot} is given back but not in use")
        self._taken.remove(slot)

    def check_empty(self) -> None:
        """What must be true when no request is alive.

        Raises:
            AccountingError: a finished request left a slot behind.
        """
        if self._taken:
            raise AccountingError(f"state slots {sorted(self._taken)} are in use and no request is alive")
