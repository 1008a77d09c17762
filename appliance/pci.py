"""Is there an NVIDIA card, and which driver? Read from the kernel, so that it works before anything is installed.

Standard library only: `tools/environment.py` uses it without an environment.
"""

import re
from dataclasses import dataclass
from pathlib import Path

VENDOR = 0x10DE
_DISPLAY_CLASS = 0x03  # VGA, 3D and other display controllers; the card's audio function is another device


@dataclass(frozen=True)
class Card:
    """One display device of NVIDIA on the PCI bus."""

    address: str
    device_id: int

    @property
    def supported(self) -> bool:
        """Whether this is Ampere (compute capability 8.0) or newer.

        Device ids are given out by generation: Turing ends below 0x2200, except that A100 and its kin are
        0x2080-0x20ff. This is for choosing packages only; the probe asks the driver.
        """
        return self.device_id >= 0x2200 or 0x2080 <= self.device_id <= 0x20FF


def nvidia_cards(sysfs: Path = Path("/sys/bus/pci/devices")) -> list[Card]:
    """NVIDIA display devices, in bus order."""
    cards = []
    for folder in sorted(sysfs.iterdir()) if sysfs.is_dir() else []:
        vendor, kind, device = (_read_hex(folder / name) for name in ("vendor", "class", "device"))
        if vendor == VENDOR and kind >> 16 == _DISPLAY_CLASS:
            cards.append(Card(folder.name, device))
    return cards


def driver_version(proc: Path = Path("/proc/driver/nvidia/version")) -> tuple[int, ...] | None:
    """Version of the loaded kernel driver, for example (580, 95, 5), or None when none is loaded."""
    try:
        text = proc.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\b", text)
    return tuple(map(int, match[1].split("."))) if match else None


def _read_hex(file: Path) -> int:
    try:
        return int(file.read_text(encoding="ascii"), 16)
    except (OSError, ValueError):
        return 0
