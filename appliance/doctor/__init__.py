"""`ninfer-appliance doctor`: one check a file; each finds one thing that would keep the box from starting."""

from appliance.doctor import artifact, device, disk, packages, permissions, port
from appliance.doctor.finding import Check, Finding, Surroundings
from appliance.owner import running_owner
from appliance.settings import Settings

CHECKS: tuple[tuple[str, Check], ...] = (
    ("permissions", permissions.check),
    ("disk", disk.check),
    ("port", port.check),
    ("packages", packages.check),
    ("device", device.check),
    ("artifact", artifact.check),
)

__all__ = ["CHECKS", "Check", "Finding", "Surroundings", "examine", "repair"]


def examine(settings: Settings, world: Surroundings | None = None) -> list[Finding]:
    """Run every check. One that fails itself is a finding too."""
    world = world or Surroundings(own_box_runs=lambda: running_owner(settings.state) is not None)
    return [_run(name, check, settings, world) for name, check in CHECKS]


def repair(settings: Settings, findings: list[Finding], world: Surroundings | None = None) -> list[Finding]:
    """Do the repairs we can do ourselves, then look again."""
    for finding in findings:
        if finding.repair is not None:
            finding.repair()
    return examine(settings, world)


def _run(name: str, check: Check, settings: Settings, world: Surroundings) -> Finding:
    try:
        return check(settings, world)
    except Exception as error:
        # Whatever it is, the other checks are worth having.
        return Finding(check=name, good=False, sentence=f"could not look: {error!r}", command="ninfer-appliance status")
