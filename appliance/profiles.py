"""Launch profiles: defaults that go with a model (etc/profiles.toml). Explicit settings come first."""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from engine.exits import ConfigurationError
from engine.options import Options, Resolved, rows_of
from engine.plan import PLAIN, Speculation
from engine.plan.settings import Vision
from engine.plan.speculation import Backend

DEFAULT_PROFILES = Path(__file__).resolve().parent.parent / "etc" / "profiles.toml"

# Keys that have no option yet, and the type of each.
_EXTRA_KEYS: dict[str, type] = {
    "spec": str,
    "draft-tokens": int,
    "lm-head-draft": bool,
    "prefill-cublas": bool,
    "vision": str,
    "mtp-experts-q4": bool,
    "device-state-slots": int,
    "host-context-mib": int,
}


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What a profile sets beyond the option table."""

    speculation: Speculation = PLAIN
    prefill_cublas: bool = False
    vision: Vision = "off"
    mtp_experts_q4: bool = False
    device_state_slots: int | None = None
    host_context_mib: int = 0


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One row: option values as text by field name, and extras."""

    name: str
    values: dict[str, str]
    extras: Extras = Extras()


def load_profile(model: str, name: str, *, explicit: bool, path: Path = DEFAULT_PROFILES) -> Profile:
    """The profile called `name` of `model`. A model without profiles has an empty one as its default.

    Raises:
        ConfigurationError: no such profile, or the file is malformed.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"profiles {path}: {error}") from error
    rows = raw.get(model, {})
    if name not in rows:
        # `run.sh` names the default profile for every model.
        if rows or (explicit and name != Options().profile):
            known = ", ".join(rows) or "none; leave --profile out"
            raise ConfigurationError(f"--profile {name}: {model} has no such profile; it has {known}")
        return Profile(name="", values={})
    return _profile(f"profiles {path}: {model}.{name}", name, rows[name])


def launch_profile(resolved: Resolved, variables: Mapping[str, str], path: Path = DEFAULT_PROFILES) -> Profile:
    """The profile that the options name, or its row for `NINFER_SPEC`, adjusted by the launch variables.

    Raises:
        ConfigurationError: no such row, or the file is malformed, or a variable contradicts the row.
    """
    model, name = resolved.options.model, resolved.options.profile
    found = load_profile(model, name, explicit=resolved.explicit("profile"), path=path)
    spec = variables.get("NINFER_SPEC")
    if spec is not None and found.extras.speculation.backend != spec:
        found = _row_for(model, found, spec, path)
    speculation = found.extras.speculation
    drafts = variables.get("NINFER_DRAFT_TOKENS")
    if drafts is not None and speculation.backend == "none":
        raise ConfigurationError(
            f"NINFER_DRAFT_TOKENS {drafts}: {model} with profile {name} drafts nothing; leave it out"
        )
    vision = variables.get("NINFER_VISION")
    host = variables.get("NINFER_HOST_CONTEXT_MIB")
    extras = dataclasses.replace(
        found.extras,
        speculation=speculation if drafts is None else dataclasses.replace(speculation, drafts=int(drafts)),
        vision=found.extras.vision if vision is None else "overlay" if vision == "on" else "off",
        host_context_mib=found.extras.host_context_mib if host is None else int(host),
    )
    return dataclasses.replace(found, extras=extras)


def _row_for(model: str, profile: Profile, spec: str, path: Path) -> Profile:
    """The sister row of `profile` with another kind of speculation: `tuned` and `tuned-mtp` are sisters."""
    rows = tomllib.loads(path.read_text(encoding="utf-8")).get(model, {})
    if spec in _specs(rows, profile.name):
        return load_profile(model, f"{profile.name}-{spec}", explicit=True, path=path)
    have = ", ".join(_specs(rows, profile.name)) or "none"
    where = f"profile {profile.name} of {model}" if profile.name else model
    raise ConfigurationError(f"NINFER_SPEC {spec}: {where} has no row with it; it has {have}")


def _specs(rows: dict[str, Any], name: str) -> list[str]:
    """Kinds of speculation of the row `name` and of its sisters."""
    return [row.get("spec", "none") for key, row in rows.items() if key in (name, f"{name}-{row.get('spec', 'none')}")]


def apply(resolved: Resolved, profile: Profile) -> Resolved:
    """`resolved` with the profile's values in place of defaults. Their source stays `default`: the ladder may change
    them. Applying twice changes nothing.

    Raises:
        ConfigurationError: a profile value does not parse.
    """
    table = dict(rows_of(Options))
    changes: dict[str, Any] = {}
    for name, text in profile.values.items():
        if not resolved.explicit(name):
            try:
                changes[name] = table[name].parse(text)
            except ValueError as error:
                raise ConfigurationError(f"profile {profile.name}: {table[name].flag} {text}: {error}") from error
    return Resolved(dataclasses.replace(resolved.options, **changes), resolved.sources)


def _profile(where: str, name: str, row: dict[str, Any]) -> Profile:
    fields = {option.flag.removeprefix("--"): field for field, option in rows_of(Options)}
    values: dict[str, str] = {}
    extras: dict[str, Any] = {}
    for key, value in row.items():
        if key in fields:
            values[fields[key]] = ("on" if value else "off") if isinstance(value, bool) else str(value)
        elif key in _EXTRA_KEYS:
            if type(value) is not _EXTRA_KEYS[key]:
                raise ConfigurationError(f"{where}: {key} is {value!r}, not of type {_EXTRA_KEYS[key].__name__}")
            extras[key] = value
        else:
            known = ", ".join(sorted((*fields, *_EXTRA_KEYS)))
            raise ConfigurationError(f"{where}: unknown key {key!r}; known: {known}")
    vision = extras.get("vision", "off")
    if vision not in ("off", "overlay"):
        raise ConfigurationError(f"{where}: vision is {vision!r}; known: off, overlay")
    return Profile(
        name=name,
        values=values,
        extras=Extras(
            speculation=Speculation(
                cast("Backend", extras.get("spec", "none")),
                extras.get("draft-tokens", 0),
                extras.get("lm-head-draft", False),
            ),
            prefill_cublas=extras.get("prefill-cublas", False),
            vision=cast("Vision", vision),
            mtp_experts_q4=extras.get("mtp-experts-q4", False),
            device_state_slots=extras.get("device-state-slots"),
            host_context_mib=extras.get("host-context-mib", 0),
        ),
    )
