"""`ninfer-appliance keys add NAME [--role user|admin]`, `keys list`, `keys revoke NAME`."""

import argparse
import datetime
import json
import sys
from collections.abc import Sequence

from appliance.settings import Settings, load_settings
from engine.exits import ConfigurationError
from engine.key_store import ROLES, Key, add_key, read_keys, revoke_key
from engine.options import parser

PROGRAM = "ninfer-appliance keys"
ABOUT = (
    "Make, list and revoke API keys. A running box takes the change at once. Only a digest is stored: a key is shown "
    "when it is made and never again. user: generate; admin: also /metrics and /v1/load."
)


def main(rest: Sequence[str]) -> int:
    """Entry point; returns the exit status.

    Raises:
        ConfigurationError: a word or a name is wrong, or the file of keys is damaged.
    """
    made = parser("appliance", PROGRAM, ABOUT)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("action", choices=("add", "list", "revoke"), help="what to do")
    made.add_argument("name", nargs="?", help="who or what has the key, for example laptop")
    made.add_argument("--role", choices=ROLES, default="user", help="what the key may do [user]")
    made.add_argument("--json", action="store_true", help="print JSON")
    flags = vars(made.parse_args(rest))
    action, name, role, as_json = (flags.pop(word) for word in ("action", "name", "role", "json"))
    settings = load_settings(flags)
    if action == "list":
        if name is not None:
            raise ConfigurationError(f"list takes no name, got {name!r}")
        print(_listed(read_keys(settings.key_store), as_json=as_json))
        return 0
    if name is None:
        raise ConfigurationError(f"{action} needs a name: {PROGRAM} {action} NAME")
    settings.make_folders()
    if action == "add":
        _add(settings, name, role, as_json=as_json)
    else:
        revoke_key(settings.key_store, name)
        left = len(read_keys(settings.key_store) or ())
        last = "; it was the last one: the box now refuses everybody until keys add" if not left else ""
        print(f"revoked {name}{last}", file=sys.stderr)
    return 0


def _add(settings: Settings, name: str, role: str, *, as_json: bool) -> None:
    first = read_keys(settings.key_store) is None and settings.options.api_key is None
    key = add_key(settings.key_store, name, "admin" if role == "admin" else "user")
    # The key alone on standard output, so that KEY=$(ninfer-appliance keys add NAME) works.
    print(json.dumps({"name": name, "role": role, "key": key}) if as_json else key)
    told = f"{name} ({role}); keep this key, it cannot be shown again"
    print(told + ("; from now on every client needs a key" if first else ""), file=sys.stderr)


def _listed(keys: Sequence[Key] | None, *, as_json: bool) -> str:
    if as_json:
        rows = [{"name": one.name, "role": one.role, "created": one.created} for one in keys or ()]
        return json.dumps(rows, indent=2)
    if keys is None:
        return "no key was ever made: ninfer-appliance keys add NAME"
    if not keys:
        return "every key is revoked, nobody may ask: ninfer-appliance keys add NAME"
    width = max(len(one.name) for one in keys)
    return "\n".join(f"{one.name:<{width}}  {one.role:<5}  {_day(one.created)}" for one in keys)


def _day(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d")
