"""Speculation as the planner sees it: which memory each backend adds (spec/memory-and-fit.md §1.2)."""

from dataclasses import dataclass
from typing import Literal

from engine.exits import ConfigurationError

Backend = Literal["none", "mtp", "dflash", "dflash2"]
BACKENDS: tuple[Backend, ...] = ("none", "mtp", "dflash", "dflash2")

MOST_DRAFTS = 15


@dataclass(frozen=True, slots=True)
class Drafter:
    """A block drafter. Its local layers keep cyclic BF16 rings inside the state image; 8 KV heads of 128."""

    local_layers: int
    window: int
    feature_layers: int
    full_layers: int

    @property
    def ring_bytes(self) -> int:
        """Bytes of the rings of one lane: key and value of every local layer."""
        return self.local_layers * self.window * 2 * 8 * 128 * 2

    @property
    def page_token_bytes(self) -> int:
        """Bytes a token in the drafter's own paged pool, which is BF16 whatever the KV format."""
        return self.full_layers * 2 * 8 * 128 * 2


DRAFTERS: dict[Backend, Drafter] = {
    "dflash": Drafter(local_layers=5, window=4096, feature_layers=8, full_layers=1),
    "dflash2": Drafter(local_layers=5, window=2048, feature_layers=5, full_layers=0),
}


@dataclass(frozen=True, slots=True)
class Speculation:
    """Backend, drafts a round (K), and whether the draft head is resident. `none` has K = 0."""

    backend: Backend = "none"
    drafts: int = 0
    draft_head: bool = False

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ConfigurationError(f"speculation {self.backend!r} is unknown; known: {', '.join(BACKENDS)}")
        if self.backend == "none" and (self.drafts or self.draft_head):
            raise ConfigurationError("speculation none takes no drafts and no draft head")
        if self.backend != "none" and not 1 <= self.drafts <= MOST_DRAFTS:
            raise ConfigurationError(f"{self.drafts} drafts with {self.backend}; must be 1 to {MOST_DRAFTS}")

    @property
    def drafter(self) -> Drafter | None:
        """The block drafter, when the backend is one."""
        return DRAFTERS.get(self.backend)

    def __str__(self) -> str:
        if self.backend == "none":
            return "none"
        return f"{self.backend} K{self.drafts}{' + draft head' if self.draft_head else ''}"


PLAIN = Speculation()


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Resident bytes of an artifact's parts. A part that the artifact lacks is `None`."""

    text: int
    mtp: int | None = None
    dflash: int | None = None
    dflash2: int | None = None
    draft_head: int | None = None
    mtp_experts_q4_saving: int = 0

    def resident(self, speculation: Speculation, *, mtp_experts_q4: bool = False) -> int:
        """Bytes on the device with `speculation`: only the selected bundle occupies memory.

        Raises:
            ConfigurationError: the artifact has no such bundle.
        """
        total = self.text
        bundles: list[str] = [] if speculation.backend == "none" else [speculation.backend]
        bundles += ["draft_head"] if speculation.draft_head else []
        for bundle in bundles:
            size: int | None = getattr(self, bundle)
            if size is None:
                raise ConfigurationError(f"speculation {speculation}: this artifact has no {bundle} weights")
            total += size
        if mtp_experts_q4 and speculation.backend == "mtp":
            total -= self.mtp_experts_q4_saving
        return total
