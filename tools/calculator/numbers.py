"""The planner's numbers as plain values for JSON.

What `engine.plan` holds as data is copied. What it holds as functions is called at every choice that the page offers,
so the page repeats none of their figures.
"""

import dataclasses
import tomllib
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from appliance.model_facts import ModelFacts, facts_of_catalog
from appliance.profiles import DEFAULT_PROFILES, load_profile
from downloader.catalog import DEFAULT_CATALOG
from engine.options import Options, resolve
from engine.plan import FORMATS, PAGE_TOKENS, REFERENCE, RUNGS, TORCH, Constants, Settings, Speculation
from engine.plan.calculator import TIGHT_BYTES
from engine.plan.speculation import BACKENDS, DRAFTERS, MOST_DRAFTS, Backend

CHUNKS = (128, 256, 512, 1024, 2048, 4096, 8192)
MOST_LANES = 8


def numbers() -> dict[str, Any]:
    """Everything that the page's planner computes with. Sizes in bytes."""
    models = catalog_models()
    return {
        "page_tokens": PAGE_TOKENS,
        "rungs": RUNGS,
        "tight_bytes": TIGHT_BYTES,
        "most_lanes": MOST_LANES,
        "most_drafts": MOST_DRAFTS,
        "chunks": CHUNKS,
        "formats": {name: dataclasses.asdict(form) for name, form in FORMATS.items()},
        "drafters": {
            name: {
                "ring_bytes": drafter.ring_bytes,
                "page_token_bytes": drafter.page_token_bytes,
                "feature_layers": drafter.feature_layers,
            }
            for name, drafter in DRAFTERS.items()
        },
        "models": {
            name: {
                "geometry": dataclasses.asdict(model.geometry),
                "weights": dataclasses.asdict(model.weights),
                "backends": backends(model),
            }
            for name, model in models.items()
        },
        "engines": {constants.name: _engine(constants, models) for constants in (TORCH, REFERENCE)},
        "profiles": {name: _profiles(name) for name in models},
    }


def catalog_models() -> dict[str, ModelFacts]:
    """The models that the catalog describes well enough to plan before they are on disk."""
    raw = tomllib.loads(DEFAULT_CATALOG.read_text(encoding="utf-8"))
    return {name: facts_of_catalog(name, DEFAULT_CATALOG) for name, row in raw["models"].items() if "geometry" in row}


def backends(model: ModelFacts) -> list[Backend]:
    """The kinds of speculation whose weights the artifact holds."""
    return [name for name in BACKENDS if name == "none" or getattr(model.weights, name) is not None]


def _engine(constants: Constants, models: dict[str, ModelFacts]) -> dict[str, Any]:
    return {
        "origin": constants.origin,
        "context_bytes": constants.context_bytes,
        "headroom_bytes": constants.headroom_bytes,
        "spare_images": constants.spare_images,
        "logit_bytes": constants.logit_bytes,
        "vision_bridge_bytes": constants.vision_bridge_bytes,
        "history_bytes": constants.history_bytes,
        "tail_hidden": constants.tail_hidden,
        "logit_columns": {name: [constants.logit_columns(spec) for spec in _every(name)] for name in BACKENDS},
        "graphs": {name: [_graphs(constants, spec) for spec in _every(name)] for name in BACKENDS},
        "models": {
            name: {
                "scalars": {
                    backend: constants.scalars(model.geometry, Settings(speculation=_every(backend)[0]))
                    for backend in backends(model)
                },
                "workspace": {
                    route: {chunk: _workspace(constants, model, chunk, route == "cublas") for chunk in CHUNKS}
                    for route in ("plain", "cublas")
                },
            }
            for name, model in models.items()
        },
    }


def _every(backend: Backend) -> list[Speculation]:
    """One for each number of drafts: 0 alone, or 1 to the most."""
    return [Speculation()] if backend == "none" else [Speculation(backend, k + 1) for k in range(MOST_DRAFTS)]


def _workspace(constants: Constants, model: ModelFacts, chunk: int, cublas: bool) -> int:
    settings = Settings(prefill_chunk=chunk, prefill_cublas=cublas)
    least, most = (constants.workspace(model.geometry, settings, context) for context in (1, RUNGS[0]))
    if least != most:
        raise AssertionError(f"constants {constants.name}: workspace grows with context, which the page cannot state")
    return most


def _graphs(constants: Constants, speculation: Speculation) -> list[tuple[int, int, int]]:
    """Steps (last context, bytes, bytes a lane) of the graph allowance."""
    settings = Settings(speculation=speculation)

    def at(context: int) -> tuple[int, int]:
        one, two, most = (constants.graphs(settings, context, lanes) for lanes in (1, 2, MOST_LANES))
        each = two - one
        if most != one + each * (MOST_LANES - 1):
            raise AssertionError(f"constants {constants.name}: graphs are not affine in lanes")
        return one - each, each

    return [(last, *sizes) for last, sizes in _steps(at, RUNGS[0])]


def _steps(value: Callable[[int], tuple[int, int]], last: int) -> list[tuple[int, tuple[int, int]]]:
    """A step function that never falls, over 1..last, as (end of the step, value)."""
    steps: list[tuple[int, tuple[int, int]]] = []
    start = 1
    while start <= last:
        here = value(start)
        end = start + bisect_right(range(start, last + 1), here, key=value) - 1
        steps.append((end, here))
        start = end + 1
    return steps


def _profiles(model: str) -> dict[str, dict[str, Any]]:
    """Launch profiles in the page's own words for each input."""
    found = {}
    for name in tomllib.loads(DEFAULT_PROFILES.read_text(encoding="utf-8")).get(model, {}):
        profile = load_profile(model, name, explicit=True)
        options = resolve({field: str(text) for field, text in profile.values.items()}, {}).options
        found[name] = _inputs(options) | {
            "backend": profile.extras.speculation.backend,
            "drafts": profile.extras.speculation.drafts or 3,
            "head": profile.extras.speculation.draft_head,
            "experts_q4": profile.extras.mtp_experts_q4,
            "cublas": profile.extras.prefill_cublas,
            "vision": profile.extras.vision == "overlay",
            "slots": profile.extras.device_state_slots,
        }
    return found


def _inputs(options: Options) -> dict[str, Any]:
    return {
        "context": options.max_context,
        "lanes": options.max_concurrency,
        "pool": options.kv_capacity,
        "format": options.kv_dtype,
        "chunk": options.prefill_chunk,
        "fp16": options.gdn_state_fp16,
    }
