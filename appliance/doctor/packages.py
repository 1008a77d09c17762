"""Are the Python packages here?"""

import sys

from appliance.doctor.finding import Finding, Surroundings
from appliance.settings import Settings

NEEDED = ("aiohttp", "jinja2", "msgspec", "numpy", "psutil", "pydantic", "supervisor", "tokenizers", "torch")


def check(settings: Settings, world: Surroundings) -> Finding:
    """Presence by metadata: nothing is imported."""
    versions = {name: world.package_version(name) for name in NEEDED}
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        return Finding(
            check="packages",
            good=False,
            sentence=f"{sys.executable} lacks {', '.join(absent)}",
            command="./run.sh --setup-only",
        )
    return Finding(check="packages", good=True, sentence=f"all there, torch {versions['torch']}")
