"""Sampling of a request: model and mode preset < process flag < request field; greedy last (spec/serving.md §6.1)."""

import re
import secrets
from dataclasses import dataclass
from typing import Protocol

import msgspec

from engine.api.config import GenerationDefaults
from engine.protocol import Sampling

SEED_MASK = 2**64 - 1


class SamplingFields(Protocol):
    """The sampling fields of a request; None is unspecified."""

    @property
    def temperature(self) -> float | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def min_p(self) -> float | None: ...
    @property
    def presence_penalty(self) -> float | None: ...
    @property
    def frequency_penalty(self) -> float | None: ...
    @property
    def seed(self) -> int | None: ...


@dataclass(frozen=True, kw_only=True)
class AskedSampling:
    """Sampling fields of a protocol that has only some of them."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None


# Published presets (spec/model.md §16.1), by whether the prompt opens a thought.
DENSE = {
    True: Sampling(temperature=1.0, top_p=0.95, top_k=20),
    False: Sampling(temperature=0.7, top_p=0.80, top_k=20, presence_penalty=1.5),
}
EXPERTS = {
    True: Sampling(temperature=1.0, top_p=0.95, top_k=20, presence_penalty=1.5),
    False: DENSE[False],
}


def preset(model: str, *, thinking: bool) -> Sampling:
    """The preset of the model called `model`; the dense one for names we do not know."""
    experts = re.search(r"35b[-_. ]?a3b|moe", model, re.IGNORECASE) is not None
    return (EXPERTS if experts else DENSE)[thinking]


def resolve_sampling(
    model: str, request: SamplingFields, defaults: GenerationDefaults, *, thinking: bool
) -> Sampling:  # fmt: skip
    """What the engine is asked to do. A request without a seed gets the process's, else a fresh one."""
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed")
    chosen = {}
    for name in names:
        for source in (request, defaults):
            value = getattr(source, name)
            if value is not None:
                chosen[name] = value
                break
    chosen["seed"] = chosen.get("seed", secrets.randbits(64)) & SEED_MASK
    if defaults.greedy:
        chosen["temperature"] = 0.0
    return msgspec.structs.replace(preset(model, thinking=thinking), **chosen)
