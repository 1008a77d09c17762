"""Reading systemd's and Podman's files, where a key may come more than once."""

import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence

Unit = dict[str, dict[str, list[str]]]


def read_unit(text: str) -> Unit:
    """Section → key → values in order. Refuses what is neither section, assignment nor comment."""
    unit: Unit = {}
    section: dict[str, list[str]] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith(("#", ";")):
            continue
        if line.startswith("[") and line.endswith("]"):
            section = unit.setdefault(line[1:-1], defaultdict(list))
            continue
        key, equals, value = line.partition("=")
        assert equals, f"line {number} is no assignment: {line!r}"
        assert section is not None, f"line {number} stands before any section"
        section[key].append(value)
    return unit


def write_unit(sections: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """The text of a unit."""
    lines: list[str] = []
    for section, keys in sections.items():
        lines += [f"[{section}]", *(f"{key}={value}" for key, values in keys.items() for value in values)]
    return "\n".join(lines) + "\n"


def systemd_version() -> int:
    """Of systemd-analyze."""
    return int(
        subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    )
