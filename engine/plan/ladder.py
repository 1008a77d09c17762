"""The ladder: lanes before rungs, for defaulted values only (spec/memory-and-fit.md §2, §4)."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from engine.exits import ConfigurationError, DoesNotFitError
from engine.plan.constants import MIB, Constants
from engine.plan.geometry import PAGE_TOKENS, Geometry, pages_of
from engine.plan.reservation import Ledger, ledger, page_limits, reservation
from engine.plan.settings import Settings

RUNGS = (262_144, 196_608, 131_072, 114_688, 98_304, 81_920)

Sized = Literal["max_context", "max_concurrency", "kv_capacity"]
FLAGS: dict[Sized, str] = {
    "max_context": "--max-context",
    "max_concurrency": "--max-concurrency",
    "kv_capacity": "--kv-capacity",
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of one device.

    `free_bytes` is what may be taken for everything: device context, weights, reservation. `kv_capacity` in tokens;
    `None` follows the context. `explicit` names the sizes that a person set: they are never changed.
    """

    model: str
    device: str
    geometry: Geometry
    settings: Settings
    weight_bytes: int
    free_bytes: int
    max_context: int
    lanes: int
    kv_capacity: int | Literal["auto"] | None = None
    explicit: frozenset[Sized] = frozenset()
    fallback: bool = True
    requires: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """One combination of rung and lanes that did not fit; all figures in bytes."""

    max_context: int
    lanes: int
    required: int
    headroom: int
    available: int
    ledger: Ledger

    @property
    def short(self) -> int:
        """Bytes that are missing."""
        return self.required + self.headroom - self.available

    @property
    def reason(self) -> str:
        """The refusal, in the words that launchers look for (spec/memory-and-fit.md §2.1)."""
        if self.headroom > max(0, self.available):
            return (
                f"--kv-capacity auto keeps a headroom of {self.headroom:,} bytes, "
                f"{max(0, self.available):,} bytes are available after weights"
            )
        if self.headroom:
            return (
                f"minimum runtime reservation requires {self.required:,} bytes and the {self.headroom:,}-byte "
                f"headroom of --kv-capacity auto, {self.available:,} bytes are available after weights"
            )
        return (
            f"runtime reservation requires {self.required:,} bytes, "
            f"{max(0, self.available):,} bytes are available for runtime capacity"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "max_context": self.max_context,
            "lanes": self.lanes,
            "required": self.required,
            "headroom": self.headroom,
            "available": self.available,
            "short": self.short,
            "reason": self.reason,
            "ledger": dict(self.ledger),
        }


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """A defaulted size that was stepped down."""

    name: Sized
    wanted: int
    got: int

    def __str__(self) -> str:
        return f"{FLAGS[self.name]} {self.wanted} → {self.got}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to start. `ledger` holds planned bytes of everything the process takes, weights and context included."""

    model: str
    device: str
    max_context: int
    lanes: int
    kv_capacity: int
    settings: Settings
    constants: str
    origin: str
    free_bytes: int
    headroom_bytes: int
    ledger: Ledger
    rejected: tuple[Rejected, ...] = ()
    reduced: tuple[Reduced, ...] = ()
    requires: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def kv_dtype(self) -> str:
        """KV cache format."""
        return self.settings.kv_dtype

    @property
    def pages(self) -> int:
        """Pages of the main KV pool."""
        return self.kv_capacity // PAGE_TOKENS

    @property
    def planned_bytes(self) -> int:
        """Everything this plan takes."""
        return sum(self.ledger.values())

    @property
    def left_bytes(self) -> int:
        """What stays free, headroom included."""
        return self.free_bytes - self.planned_bytes

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: state file, `plan --json`."""
        return {
            "model": self.model,
            "device": self.device,
            "max_context": self.max_context,
            "lanes": self.lanes,
            "kv_capacity": self.kv_capacity,
            "kv_dtype": self.kv_dtype,
            "prefill_chunk": self.settings.prefill_chunk,
            "gdn_state_fp16": self.settings.state_fp16,
            "speculation": str(self.settings.speculation),
            "vision": self.settings.vision,
            "constants": {"name": self.constants, "origin": self.origin},
            "free_bytes": self.free_bytes,
            "planned_bytes": self.planned_bytes,
            "headroom_bytes": self.headroom_bytes,
            "left_bytes": self.left_bytes,
            "ledger": dict(self.ledger),
            "reduced": [dataclasses.asdict(change) for change in self.reduced],
            "rejected": [row.as_dict() for row in self.rejected],
            "requires": list(self.requires),
            "notes": list(self.notes),
        }


class NoPlanError(DoesNotFitError):
    """Nothing that may be tried fits. `nearest` is a plan that would, when sizes a person set were let go."""

    def __init__(self, message: str, rejected: tuple[Rejected, ...], nearest: Plan | None) -> None:
        super().__init__(message)
        self.rejected = rejected
        self.nearest = nearest


def make(request: Request, constants: Constants) -> Plan:
    """The first combination of rung and lanes that fits, from the requested one down.

    Raises:
        ConfigurationError: sizes contradict each other or the model.
        NoPlanError: nothing that may be changed makes it fit; names the shortfall and the nearest plan that fits.
    """
    _check(request)
    rejected: list[Rejected] = []
    for max_context, lanes in _candidates(request):
        tried = _try(request, constants, max_context, lanes)
        if isinstance(tried, Plan):
            return dataclasses.replace(tried, rejected=tuple(rejected), reduced=_reduced(request, tried))
        rejected.append(tried)
    raise _refusal(request, constants, tuple(rejected))


def _check(request: Request) -> None:
    limit = request.geometry.max_positions
    if request.max_context > limit:
        raise ConfigurationError(
            f"--max-context {request.max_context}: {request.model} knows {limit} positions; use at most {limit}"
        )
    capacity = request.kv_capacity
    if not isinstance(capacity, int) or "kv_capacity" not in request.explicit:
        return
    low, high = page_limits(request.max_context, request.lanes)
    context_free = request.fallback and "max_context" not in request.explicit
    if pages_of(capacity) < request.lanes or (capacity < request.max_context and not context_free):
        raise ConfigurationError(
            f"--kv-capacity {capacity} is less than one request of --max-context {request.max_context} tokens "
            f"and {request.lanes} lanes need; use at least {max(request.max_context, low * PAGE_TOKENS)}"
        )
    if pages_of(capacity) > high:
        raise ConfigurationError(
            f"--kv-capacity {capacity} is more than {request.lanes} lanes of {request.max_context} tokens can use; "
            f"use at most {high * PAGE_TOKENS}"
        )


def _candidates(request: Request) -> Iterator[tuple[int, int]]:
    step = request.fallback
    rungs = [request.max_context]
    capacity = request.kv_capacity
    if step and "max_context" not in request.explicit:
        if isinstance(capacity, int) and "kv_capacity" in request.explicit:
            rungs = [min(request.max_context, capacity)]
        rungs += [rung for rung in RUNGS if rung < rungs[0]]
    least = 1 if step and "max_concurrency" not in request.explicit else request.lanes
    for rung in rungs:
        for lanes in range(request.lanes, least - 1, -1):
            # A pool that someone sized must stay usable: fewer lanes could not fill it.
            fixed = isinstance(capacity, int) and "kv_capacity" in request.explicit
            if fixed and isinstance(capacity, int) and pages_of(capacity) > page_limits(rung, lanes)[1]:
                continue
            yield rung, lanes


def _try(request: Request, constants: Constants, max_context: int, lanes: int) -> Plan | Rejected:
    geometry, settings = request.geometry, request.settings
    need = reservation(geometry, settings, constants, max_context=max_context, lanes=lanes)
    fixed = {"weights": request.weight_bytes, "device context": constants.context_bytes}
    available = request.free_bytes - sum(fixed.values())
    headroom = 0
    capacity = request.kv_capacity
    if capacity == "auto":
        headroom = constants.headroom_bytes
        fits = available - headroom >= need.minimum_bytes
        pages = need.most_pages(available - headroom) if fits else need.minimum_pages
    elif capacity is None:
        pages = need.minimum_pages
    else:
        pages = min(max(pages_of(capacity), need.minimum_pages), need.maximum_pages)
    required = need.bytes_for(pages)
    rows = fixed | ledger(geometry, settings, constants, max_context=max_context, lanes=lanes, pages=pages)
    if required + headroom > available:
        return Rejected(
            max_context=max_context,
            lanes=lanes,
            required=required,
            headroom=headroom,
            available=available,
            ledger=rows,
        )
    return Plan(
        model=request.model,
        device=request.device,
        max_context=max_context,
        lanes=lanes,
        kv_capacity=pages * PAGE_TOKENS,
        settings=settings,
        constants=constants.name,
        origin=constants.origin,
        free_bytes=request.free_bytes,
        headroom_bytes=headroom,
        ledger=rows,
        requires=request.requires,
        notes=request.notes,
    )


def _reduced(request: Request, plan: Plan) -> tuple[Reduced, ...]:
    changes = [
        Reduced(name="max_context", wanted=request.max_context, got=plan.max_context),
        Reduced(name="max_concurrency", wanted=request.lanes, got=plan.lanes),
    ]
    if isinstance(request.kv_capacity, int):
        wanted = pages_of(request.kv_capacity) * PAGE_TOKENS
        changes.append(Reduced(name="kv_capacity", wanted=wanted, got=plan.kv_capacity))
    return tuple(change for change in changes if change.got < change.wanted)


def nearest(request: Request, constants: Constants) -> Plan | None:
    """The largest plan that fits when no size is held: the ladder first, then the longest one-lane context."""
    loose = dataclasses.replace(request, explicit=frozenset(), fallback=True, kv_capacity=None)
    for max_context, lanes in _candidates(loose):
        tried = _try(loose, constants, max_context, lanes)
        if isinstance(tried, Plan):
            return tried
    best: Plan | None = None
    low, high = 1, pages_of(min(request.max_context, RUNGS[-1]))
    while low <= high:
        middle = (low + high) // 2
        tried = _try(loose, constants, middle * PAGE_TOKENS, 1)
        if isinstance(tried, Plan):
            best, low = tried, middle + 1
        else:
            high = middle - 1
    return best


def longest_context(request: Request, constants: Constants) -> int:
    """Most tokens of context that fit with the request's lanes and pool, in whole pages; 0 when none do.

    Bytes never fall as context grows, so the answer is searched for. A pool in tokens bounds the context.
    """
    limit = request.geometry.max_positions
    if isinstance(request.kv_capacity, int):
        limit = min(limit, request.kv_capacity)
    low, high = 0, limit // PAGE_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        fits = isinstance(_try(request, constants, middle * PAGE_TOKENS, request.lanes), Plan)
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * PAGE_TOKENS


def _refusal(request: Request, constants: Constants, rejected: tuple[Rejected, ...]) -> NoPlanError:
    last = rejected[-1]
    lanes = f"{last.lanes} lane{'s' if last.lanes > 1 else ''}"
    asked = f"{request.model}, {last.max_context} tokens, {lanes}, {request.settings.kv_dtype} on {request.device}"
    message = f"{asked}: {last.reason}; {-(-last.short // MIB)} MiB short"
    held = [FLAGS[name] for name in FLAGS if name in request.explicit]
    if held:
        message += f". {' and '.join(held)} {'is' if len(held) == 1 else 'are'} set, so nothing was changed silently"
    elif not request.fallback:
        message += ". --no-fallback is set, so nothing was stepped down"
    else:
        message += ". This is the lowest rung"
    found = nearest(request, constants)
    if found is None:
        message += ". No context fits beside these weights; free device memory or choose a smaller model"
    else:
        message += f". What fits: --max-context {found.max_context} --max-concurrency {found.lanes}"
    return NoPlanError(message, rejected, found)
