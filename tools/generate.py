"""Writes what states options from the option table, so that documents, module and units cannot drift from it.

`python -m tools.generate` writes the files; `--check` writes nothing, names those that are out of date and exits 1.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from appliance.launch_variables import ADJUSTING, NUMBERS, OFF_ALONE, PRESETS, WORDS
from appliance.launch_variables import REFUSED as REFUSED_VARIABLES
from engine.options import REFUSED, Option, Options, Value, rows_of

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = {
    "network": "Network and limits",
    "memory": "Context and memory",
    "execution": "Execution",
    "generation": "Generation defaults",
    "box": "The box",
}
COMMANDS = {"serve": "`ninfer-serve`", "generate": "`ninfer`", "appliance": "`ninfer-appliance`"}
SOURCE = "Made by tools/generate.py from engine/options.py"
SET_BY_THE_PACKAGE = ("home",)  # each package has one place for it


def outputs() -> dict[str, str]:
    """Contents of every generated file, by path in the checkout."""
    return {
        "docs/options.md": options_page(),
        "etc/ninfer.env": environment_file(),
        "nix/options.json": module_options(),
    }


def allowed(value: Value) -> str:
    """One phrase: what the option's text may be."""
    match value.kind:
        case "switch":
            return "on or off"
        case "choice":
            return ", ".join(value.choices)
        case "integer" | "number":
            words = "".join(f"{word}, or " for word in value.choices)
            return words + _range(value)
        case _:
            return value.kind


def _range(value: Value) -> str:
    noun = "number" if value.kind == "number" else "integer" if value.multiple == 1 else f"multiple of {value.multiple}"
    if value.maximum is not None:
        return f"{noun} from {_plain(value.minimum)} to {_plain(value.maximum)}"
    return f"{noun} from {_plain(value.minimum)}"


def _plain(bound: float | None) -> str:
    return "" if bound is None else str(int(bound)) if bound == int(bound) else f"{bound:g}"


def default_text(row: Option) -> str | None:
    """The default as somebody would type it, the same on every machine; None where there is none."""
    if row.default is None:
        return None
    if isinstance(row.default, bool):
        return "on" if row.default else "off"
    if isinstance(row.default, Path) and row.default.is_relative_to(Path.home()):
        return f"~/{row.default.relative_to(Path.home())}"
    return str(row.default)


def options_page() -> str:
    """`docs/options.md`: every option, by section, and the flags of the seed that are refused."""
    lines = [
        f"<!-- {SOURCE}; change it there. -->",
        "# Options",
        "",
        "A value comes from the first of: flag, environment, `HOME/settings.toml` (keys are the flags without dashes),",
        "default. `ninfer-appliance up` prints every value with its source.",
    ]
    for section, title in SECTIONS.items():
        lines += ["", f"## {title}", "", "| flag | environment | values | default | what it does | commands |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [_table_row(row) for _, row in rows_of(Options) if row.section == section]
    lines += [
        "",
        "## Launch variables",
        "",
        "Variables of the seed's `run.sh` that adjust a launch profile of `etc/profiles.toml`. They have no flag.",
        "",
        "| variable | values | what it does |",
        "|---|---|---|",
        *(f"| `{name}` | {_launch_values(name)} | {text} |" for name, text in ADJUSTING.items()),
        *(f"| `{name}=default` | | leaves the model's preset in place of the profile's value |" for name in PRESETS),
        *(f"| `{name}` | off | on is refused |" for name in OFF_ALONE),
        "",
        "Refused:",
        "",
        *(f"- `{name}` {reason}" for name, reason in REFUSED_VARIABLES.items()),
        "",
        "## Refused",
        "",
        "These flags of the seed project stop the start with the sentence beside them.",
        "",
        "| flag | reason |",
        "|---|---|",
        *(f"| `{flag}` | {reason} |" for flag, reason in REFUSED.items()),
    ]
    return "\n".join(lines) + "\n"


def _launch_values(name: str) -> str:
    if name in WORDS:
        return ", ".join(WORDS[name])
    least, most = NUMBERS[name]
    return f"integer from {least} to {most}"


def _table_row(row: Option) -> str:
    flag = row.flag
    if row.parse.kind == "switch" and row.default:
        flag = f"--no-{flag.removeprefix('--')}"
    default = default_text(row)
    commands = ", ".join(COMMANDS[command] for command in row.commands)
    cells = (f"`{flag}`", f"`{row.env}`", allowed(row.parse), "" if default is None else f"`{default}`", row.help)
    return f"| {' | '.join(cells)} | {commands} |"


def environment_file() -> str:
    """`etc/ninfer.env`: every option of the box as a comment, for `EnvironmentFile=`, `--env-file` and compose."""
    lines = [
        f"# {SOURCE}; a copy of it is yours to edit.",
        "# Settings of the box. A line that is a comment leaves the default. No quotes: what follows = is the value.",
        "# Keep the file readable by its owner alone when it holds a key.",
    ]
    for section, title in SECTIONS.items():
        rows = [
            row
            for name, row in rows_of(Options)
            if row.section == section and "appliance" in row.commands and name not in SET_BY_THE_PACKAGE
        ]
        lines += ["", f"# {title}"]
        for row in rows:
            lines += [f"# {row.help}; {allowed(row.parse)}", f"#{row.env}={default_text(row) or ''}"]
    return "\n".join(lines) + "\n"


def module_options() -> str:
    """`nix/options.json`: what the NixOS module makes its typed `settings` from, by flag without dashes."""
    settings = {row.flag.removeprefix("--"): record for row, record in _records()}
    return json.dumps({"source": SOURCE, "settings": settings}, indent=2) + "\n"


def _records() -> Iterator[tuple[Option, dict[str, Any]]]:
    for name, row in rows_of(Options):
        if "appliance" not in row.commands or name in SET_BY_THE_PACKAGE:
            continue
        yield (
            row,
            {
                "environment": row.env,
                "kind": row.parse.kind,
                "choices": row.parse.choices,
                "minimum": row.parse.minimum,
                "maximum": _bound(row.parse.maximum),
                "multiple": row.parse.multiple,
                "default": default_text(row),
                "description": row.help,
                "secret": row.secret,
            },
        )


def _bound(maximum: float | None) -> float | None:
    # Nix has no integer above this one.
    return None if maximum is not None and maximum >= 2**63 else maximum


def outdated(root: Path = ROOT) -> list[str]:
    """Paths of generated files that differ from what the table says now."""
    return [
        path
        for path, text in outputs().items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    check = parser.parse_args().check
    stale = outdated()
    for path in stale:
        if not check:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(outputs()[path], encoding="utf-8")
        print(f"{path}: {'out of date; type: python -m tools.generate' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
