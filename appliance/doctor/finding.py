"""What a check says, and what it may look at."""

import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from appliance.pci import Card, driver_version, nvidia_cards
from appliance.processes import port_owner
from appliance.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One answer: a sentence, the command to type when it is not good, and the repair we can do ourselves."""

    check: str
    good: bool
    sentence: str
    command: str = ""
    repair: Callable[[], None] | None = None

    def line(self) -> str:
        """For a person."""
        mark = "ok" if self.good else "BAD"
        advice = f"; type: {self.command}" if self.command and not self.good else ""
        own = " (--fix does it)" if self.repair is not None else ""
        return f"{mark:<4}{self.check:<13}{self.sentence}{advice}{own}"

    def as_dict(self) -> dict[str, object]:
        """As plain data."""
        return {
            "check": self.check,
            "good": self.good,
            "sentence": self.sentence,
            "command": self.command,
            "fixable": self.repair is not None,
        }


def can_listen(host: str, port: int) -> bool:
    """Whether a server could bind this address now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError:
        return False
    return True


def package_version(name: str) -> str | None:
    """Version of an installed Python package."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the world provides to checks; replaced in tests."""

    free_bytes: Callable[[Path], int] = field(default=lambda folder: shutil.disk_usage(folder).free)
    can_listen: Callable[[str, int], bool] = can_listen
    port_owner: Callable[[int], str] = port_owner
    own_box_runs: Callable[[], bool] = field(default=lambda: False)
    cards: Callable[[], list[Card]] = nvidia_cards
    driver: Callable[[], tuple[int, ...] | None] = driver_version
    device_nodes: Callable[[], list[Path]] = field(default=lambda: sorted(Path("/dev").glob("nvidia*")))
    package_version: Callable[[str], str | None] = package_version


Check = Callable[[Settings, Surroundings], Finding]


def existing_parent(folder: Path) -> Path:
    """`folder`, or the nearest folder above it that is there."""
    while not folder.exists():
        folder = folder.parent
    return folder
