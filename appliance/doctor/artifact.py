"""Is the artifact here, whole and readable?"""

import shlex

from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "artifact"


def check(settings: Settings, facts: Facts) -> Finding:
    """The pinned bytes (hashed, unless they are unchanged since they last were), and the container's own checks."""
    found, path = facts.artifact, settings.artifact
    command = "ninfer-appliance up"
    if settings.fetch:
        catalog, folder = shlex.quote(str(settings.catalog)), shlex.quote(str(settings.models))
        command = f"download-model {settings.model} --catalog {catalog} --dir {folder}"
    if not found.present:
        return Finding(
            check=NAME,
            level="ok" if found.fetchable else "bad",
            sentence=f"{path} is not here yet; `up` fetches it",
            command=command,
        )
    if found.verified is False:
        return Finding(check=NAME, level="bad", sentence=f"{path} is not the pinned bytes", command=command)
    if found.fault:
        return Finding(check=NAME, level="bad", sentence=f"{path}: {found.fault}", command=command)
    return Finding(check=NAME, sentence=f"{path} holds {found.name}{', verified' if found.verified else ''}")
