"""Are the Python packages here?"""

import sys

from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "packages"
NEEDED = ("aiohttp", "jinja2", "msgspec", "numpy", "psutil", "pydantic", "supervisor", "tokenizers", "torch")


def check(settings: Settings, facts: Facts) -> Finding:
    """Presence by metadata: nothing is imported."""
    absent = [name for name in NEEDED if facts.packages.get(name) is None]
    if absent:
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"{sys.executable} lacks {', '.join(absent)}",
            command="./run.sh --setup-only",
        )
    return Finding(check=NAME, sentence=f"all there, torch {facts.packages['torch']}")
