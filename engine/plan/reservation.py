"""The runtime reservation: every byte that is taken once, after the weights (spec/memory-and-fit.md §1.2, §2)."""

from dataclasses import dataclass

from engine.plan.constants import Constants
from engine.plan.formats import kv_format
from engine.plan.geometry import (
    PAGE_TOKENS,
    Geometry,
    key_value_bytes,
    pages_of,
    replay_record_bytes,
    state_image_bytes,
)
from engine.plan.settings import Settings

Ledger = dict[str, int]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Bytes as a function of pages in the main pool: `minimum_bytes + (pages - minimum_pages) * page_bytes`."""

    minimum_pages: int
    maximum_pages: int
    minimum_bytes: int
    page_bytes: int

    def bytes_for(self, pages: int) -> int:
        """B(M) for M = `pages`."""
        return self.minimum_bytes + (pages - self.minimum_pages) * self.page_bytes

    def most_pages(self, budget: int) -> int:
        """Most pages that `budget` bytes can hold, at most the maximum; `budget` must hold the minimum."""
        return min(self.maximum_pages, self.minimum_pages + (budget - self.minimum_bytes) // self.page_bytes)


def ledger(
    geometry: Geometry, settings: Settings, constants: Constants, *, max_context: int, lanes: int, pages: int
) -> Ledger:
    """Planned bytes of each component, in the order they are reserved; components of zero bytes are left out."""
    speculation, drafter = settings.speculation, settings.speculation.drafter
    form = kv_format(settings.kv_dtype)
    columns = speculation.drafts + 1
    chunk = settings.prefill_chunk
    spare = settings.device_state_slots
    if spare is None:
        spare = lanes if constants.spare_images is None else constants.spare_images
    pools = 2 if speculation.backend in ("mtp", "dflash") else 1
    ring_bytes = drafter.ring_bytes if drafter else 0
    features = drafter.feature_layers * geometry.hidden_size if drafter else 0

    rows = {"KV pages": key_value_bytes(geometry, form) * PAGE_TOKENS * pages}
    if speculation.backend == "mtp":
        draft_pages = pages + lanes * pages_of(speculation.drafts - 1)
        rows["MTP KV pages"] = key_value_bytes(geometry, form, layers=1) * PAGE_TOKENS * draft_pages
    if drafter:
        rows["drafter KV pages"] = drafter.page_token_bytes * PAGE_TOKENS * pages
    rows["block tables"] = 4 * pages_of(max_context) * lanes * pools
    image = state_image_bytes(
        geometry,
        fp16=settings.state_fp16,
        history_bytes=constants.history_bytes,
        tail_hidden=constants.tail_hidden or speculation.backend != "none",
        ring_bytes=ring_bytes,
    )
    rows["state images"] = (lanes + spare) * image
    if speculation.backend != "none":
        rows["replay records"] = lanes * columns * replay_record_bytes(geometry)
    rows["prefill hidden"] = geometry.hidden_size * chunk * 2
    rows["drafter features"] = features * (chunk + columns * lanes) * 2
    logits = constants.logit_columns(speculation) * geometry.vocabulary_rows * constants.logit_bytes
    rows["round logits"] = logits * lanes
    rows["token counts"] = 4 * geometry.token_count * lanes
    rows["round scalars"] = constants.scalars(geometry, settings)
    rows["workspace"] = constants.workspace(geometry, settings, max_context)
    rows["graphs"] = constants.graphs(settings, max_context, lanes)
    rows["vision bridge"] = constants.vision_bridge_bytes if settings.vision == "overlay" else 0
    return {component: size for component, size in rows.items() if size}


def page_limits(max_context: int, lanes: int) -> tuple[int, int]:
    """Fewest and most pages that a pool for `lanes` requests of `max_context` tokens can use."""
    return max(pages_of(max_context), lanes), lanes * pages_of(max_context)


def reservation(
    geometry: Geometry, settings: Settings, constants: Constants, *, max_context: int, lanes: int
) -> Reservation:
    """The reservation as an affine function of the page count, checked at both ends.

    Raises:
        AssertionError: the components do not grow by the same bytes a page, which is an error of ours.
    """

    def total(pages: int) -> int:
        return sum(ledger(geometry, settings, constants, max_context=max_context, lanes=lanes, pages=pages).values())

    low, high = page_limits(max_context, lanes)
    minimum = total(low)
    made = Reservation(low, high, minimum, total(low + 1) - minimum)
    highest = total(high)
    if made.bytes_for(high) != highest:
        raise AssertionError(f"reservation is not affine: {made}, {highest} bytes at {high} pages")
    return made
