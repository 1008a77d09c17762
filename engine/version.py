"""The version of this build."""

from functools import cache
from importlib import metadata
from pathlib import Path


@cache
def version() -> str:
    """Content of the VERSION file of a checkout, else what the installed distribution says."""
    file = Path(__file__).parents[1] / "VERSION"
    if file.is_file():
        return file.read_text(encoding="utf-8").strip()
    return metadata.version("ninfer-appliance")
