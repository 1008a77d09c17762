"""Variables of the seed's launchers that are no options of ours: they select and adjust a launch profile.

spec/cli.md §5.1. Most variables of that table are rows of the option table; these are the rest. What the engine lacks
is refused by name. A word that is not one of a variable's words is a `ConfigurationError`, which ends with 2.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine.exits import ConfigurationError
from engine.options import Resolved, Source

_NO_CACHE = "needs NINFER_AUTO_HOST_CACHE=on, which is not in this version"
_NO_STORE = "is not in this version: conversations are not kept; leave it out"
REFUSED = {
    "NINFER_SERVER": "is not needed: the appliance starts its own server; leave it out",
    "NINFER_HOST_CACHE_PERCENT": _NO_CACHE,
    "NINFER_HOST_CACHE_RESERVE_MIB": _NO_CACHE,
    "NINFER_HOST_CACHE_MAX_MIB": _NO_CACHE,
    "NINFER_CONTEXT_STORE": _NO_STORE,
    "NINFER_CONTEXT_STORE_MAX_GIB": _NO_STORE,
    "NINFER_LOOKUP_NGRAM": "is not in this version; leave it out",
    "NINFER_CUDA_SYNC": "is not in this version; leave it out",
}
REFUSED_PREFIX = "NINFER_S3_"
OFF_ALONE = ("NINFER_AUTO_HOST_CACHE", "NINFER_MLP_A8_DECODE")
WORDS = {
    "NINFER_SPEC": ("mtp", "none", "dflash2"),
    "NINFER_VISION": ("on", "off"),
    "NINFER_VISION_RESIDENCY": ("overlay", "resident"),
} | dict.fromkeys(OFF_ALONE, ("on", "off"))
NUMBERS = {"NINFER_DRAFT_TOKENS": (1, 15), "NINFER_HOST_CONTEXT_MIB": (0, 1 << 24)}
ADJUSTING = {
    "NINFER_SPEC": "the row of profile `tuned` with this speculation",
    "NINFER_DRAFT_TOKENS": "drafts a round, in place of the row's",
    "NINFER_VISION": "whether images are taken, in place of the row's",
    "NINFER_VISION_RESIDENCY": "where the vision tower is; `resident` is refused",
    "NINFER_HOST_CONTEXT_MIB": "host memory for the context cache, in place of the row's",
}
# `default` in these leaves the model's own preset in place of the profile's value.
PRESETS = {"NINFER_MIN_P": "min_p", "NINFER_PRESENCE_PENALTY": "presence_penalty"}


def collect(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that adjust a profile, checked.

    Raises:
        ConfigurationError: a variable is not one we have, or its text is not one of its words.
    """
    for name in environ:
        reason = (
            "is not offered: conversations stay on this box" if name.startswith(REFUSED_PREFIX) else REFUSED.get(name)
        )
        if reason and environ[name]:
            raise ConfigurationError(f"{name} {reason}")
    for name, words in WORDS.items():
        text = environ.get(name)
        if text and text not in words:
            raise ConfigurationError(f"{name}: {text!r} must be one of {', '.join(words)}")
    for name in OFF_ALONE:
        if environ.get(name) == "on":
            raise ConfigurationError(f"{name}=on is not in this version; off, or leaving it out, works")
    if environ.get("NINFER_VISION_RESIDENCY") == "resident" and environ.get("NINFER_VISION") != "off":
        raise ConfigurationError("NINFER_VISION_RESIDENCY=resident is not in this version; overlay works")
    for name, (least, most) in NUMBERS.items():
        text = environ.get(name)
        if text and not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise ConfigurationError(f"{name}: {text!r} must be an integer from {least} to {most}")
    return {name: environ[name] for name in ADJUSTING if environ.get(name)}


def without_presets(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without the variables that say `default`."""
    return {name: text for name, text in environ.items() if not (name in PRESETS and text == "default")}


def keep_presets(resolved: Resolved, flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Resolved:
    """Unset what a variable leaves to the model's preset, as a setting of a person: a profile does not change it."""
    names = [field for name, field in PRESETS.items() if environ.get(name) == "default" and flags.get(field) is None]
    unset: dict[str, Any] = dict.fromkeys(names)
    sources: dict[str, Source] = {**resolved.sources, **dict.fromkeys(names, "environment")}
    return Resolved(dataclasses.replace(resolved.options, **unset), sources)


def is_path(model: str) -> bool:
    """Whether a model is named by the path of its artifact."""
    return "/" in model or model.endswith(".ninfer")
