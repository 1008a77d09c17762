"""The whole input of a plan: what this machine has, as one record that can also be written by hand.

A description in TOML or JSON stands for a machine that is not here (`ninfer-appliance plan --machine FILE`). Sizes
are bytes, or text such as "24576 MiB" or "1.3 GiB".
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine.exits import ConfigurationError

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)\s*")


class Process(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that holds memory of a card. `used_bytes` is None where the driver does not say."""

    pid: int
    name: str = ""
    used_bytes: int | None = None


class Card(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device as CUDA numbers it in bus order: a whole card, or a slice of one (MIG).

    `free_bytes` is what the driver calls free; `reserved_bytes` is its own and is in neither free nor used.
    """

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    used_bytes: int = 0
    reserved_bytes: int = 0
    compute_capability: tuple[int, int]
    uuid: str = ""
    processes: tuple[Process, ...] = ()

    @property
    def device(self) -> str:
        """Name of the device for torch."""
        return f"cuda:{self.index}"


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cards, host memory, disk. `fault` says why cards that are on the bus (`pci_cards`) cannot be used."""

    cards: tuple[Card, ...] = ()
    pci_cards: tuple[str, ...] = ()
    driver: str = ""
    fault: str = ""
    cpu_count: int = 1
    host_total_bytes: int
    host_available_bytes: int
    disk_free_bytes: int = 0
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values; `machine_from` reads them back."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def machine_from(record: Mapping[str, Any], where: str = "machine") -> Machine:
    """A machine from plain values.

    Raises:
        ConfigurationError: a key is unknown or missing, a value is of the wrong type, or sizes contradict each other.
    """
    try:
        machine = msgspec.convert(_with_bytes(record), Machine)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigurationError(f"{where}: {error}") from error
    for card in machine.cards:
        if not 0 <= card.free_bytes <= card.total_bytes:
            raise ConfigurationError(
                f"{where}: card {card.index} has {card.free_bytes} bytes free of {card.total_bytes}"
            )
    if len({card.index for card in machine.cards}) != len(machine.cards):
        raise ConfigurationError(f"{where}: two cards have the same index")
    return machine


def read_machine(path: Path) -> Machine:
    """A machine from a TOML or JSON file.

    Raises:
        ConfigurationError: the file cannot be read, or is not a description of a machine.
    """
    try:
        text = path.read_text(encoding="utf-8")
        record = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--machine {path}: {error}") from error
    if not isinstance(record, dict):
        raise ConfigurationError(f"--machine {path}: not a table of values")
    return machine_from(record, f"--machine {path}")


def _with_bytes(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _with_bytes(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_bytes(item) for item in value]
    if isinstance(value, str) and key.endswith("_bytes"):
        match = _SIZE.fullmatch(value)
        if match is None:
            raise ValueError(f"{key} is {value!r}; write bytes, or a number and one of {', '.join(_UNITS)}")
        return round(float(match[1]) * _UNITS[match[2]])
    return value
