"""Does the CDI specification exist, and name what is there? An update of the driver leaves it stale (case C3)."""

from appliance.doctor.device import used
from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "cdi"
COMMAND = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


def check(settings: Settings, facts: Facts) -> Finding:
    """Only a machine that makes containers needs one; without containers a fault of it is good to know."""
    if facts.container:
        return Finding(check=NAME, sentence="in a container: the host has the specification")
    if not used(settings, facts):
        return Finding(check=NAME, sentence="no card to specify")
    if not facts.runtimes:
        return Finding(check=NAME, sentence="no podman or docker here, so none is needed")
    who = " and ".join(facts.runtimes)
    if not facts.cdi:
        return Finding(
            check=NAME,
            level="warning",
            sentence=f"no specification in /etc/cdi or /var/run/cdi: {who} cannot give the card away by nvidia.com/gpu",
            command=COMMAND,
        )
    for spec in facts.cdi:
        if spec.missing:
            more = f" and {len(spec.missing) - 1} more" if len(spec.missing) > 1 else ""
            return Finding(
                check=NAME,
                level="warning",
                sentence=f"{spec.path} names {spec.missing[0]}{more}, which is not there: containers will not start",
                command=COMMAND,
            )
        other = sorted(spec.versions - {facts.module})
        if other:
            return Finding(
                check=NAME,
                level="warning",
                sentence=f"{spec.path} is of driver {other[0]}, but {facts.module} is loaded",
                command=COMMAND,
            )
    return Finding(check=NAME, sentence=f"{', '.join(str(spec.path) for spec in facts.cdi)} fits driver {facts.module}")
