"""Is the artifact here, whole and readable?"""

import shlex

from appliance.doctor.finding import Finding, Surroundings
from appliance.settings import Settings
from downloader.catalog import find, read_catalog
from downloader.verify import is_verified
from engine.artifact import Artifact
from engine.exits import NInferError


def check(settings: Settings, world: Surroundings) -> Finding:
    """The pinned bytes (hashed, unless they are unchanged since they last were), and the container's own checks."""
    path = settings.artifact
    command = "ninfer-appliance up"
    if settings.fetch:
        pin = find(read_catalog(settings.catalog), settings.model)
        folder = shlex.quote(str(settings.models))
        catalog = shlex.quote(str(settings.catalog))
        command = f"download-model {settings.model} --catalog {catalog} --dir {folder}"
        if not path.exists():
            sentence = f"{path} is not here yet; `up` fetches it"
            return Finding(check="artifact", good=pin.url is not None, sentence=sentence, command=command)
        if not is_verified(path, pin):
            return Finding(check="artifact", good=False, sentence=f"{path} is not the pinned bytes", command=command)
    try:
        with Artifact.open(path) as artifact:
            name = artifact.name
    except (NInferError, OSError) as error:
        return Finding(check="artifact", good=False, sentence=f"{path}: {error}", command=command)
    return Finding(check="artifact", good=True, sentence=f"{path} holds {name}")
