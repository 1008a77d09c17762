"""Is there room for the artifact?"""

import shlex

from appliance.doctor.finding import Finding, Surroundings, existing_parent
from appliance.settings import Settings
from downloader.catalog import find, read_catalog

SPARE_BYTES = 1 << 30


def check(settings: Settings, world: Surroundings) -> Finding:
    """Free bytes in the folder of artifacts against what is still to be fetched, and 1 GiB to spare."""
    missing = 0
    if settings.fetch and not settings.artifact.exists():
        missing = find(read_catalog(settings.catalog), settings.model).bytes
    free = world.free_bytes(existing_parent(settings.models))
    need = missing + SPARE_BYTES
    told = f"{free / 2**30:.1f} GiB free in {settings.models}, {need / 2**30:.1f} GiB needed"
    return Finding(
        check="disk",
        good=free >= need,
        sentence=told,
        command=f"du -xh --max-depth=2 {shlex.quote(str(existing_parent(settings.models)))} | sort -h | tail",
    )
