"""Is there room for the artifact?"""

import shlex

from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "disk"
SPARE_BYTES = 1 << 30


def check(settings: Settings, facts: Facts) -> Finding:
    """Free bytes in the folder of artifacts against what is still to be fetched, and 1 GiB to spare."""
    missing = 0 if facts.artifact.present else facts.artifact.bytes
    need = missing + SPARE_BYTES
    return Finding(
        check=NAME,
        level="ok" if facts.free_bytes >= need else "bad",
        sentence=f"{facts.free_bytes / 2**30:.1f} GiB free in {settings.models}, {need / 2**30:.1f} GiB needed",
        command=f"du -xh --max-depth=2 {shlex.quote(str(settings.models))} | sort -h | tail",
    )
