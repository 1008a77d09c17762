"""The real controller with a described machine and a fixed plan."""

import json
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from appliance.controller import Surroundings, main
from appliance.settings import Settings
from engine.exits import DoesNotFitError
from engine.state_file import Finding


@dataclass(frozen=True)
class FixedPlan:
    """A plan that always fits."""

    device: str = "cpu"
    max_context: int = 4096
    lanes: int = 1
    kv_capacity: int = 4096

    def as_dict(self) -> dict[str, Any]:
        """As data."""
        return asdict(self)


def probe(settings: Settings, waiting: Callable[[str], None], gone: Collection[int]) -> str:
    """Anything."""
    waiting("looking around")
    return "machine"


def plan(settings: Settings, machine: object) -> FixedPlan:
    """Refuses when the script says so."""
    script_file = Path(os.environ["SCRIPT_FOLDER"]) / "plan.json"
    if script_file.exists():
        raise DoesNotFitError(str(json.loads(script_file.read_bytes())["refuse"]))
    return FixedPlan()


def examine(settings: Settings) -> list[Finding]:
    """One thing to know."""
    return [Finding(check="disk", level="warning", sentence=f"{settings.home} is small", command="du -xh")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Surroundings(probe=probe, plan=plan, examine=examine)))
