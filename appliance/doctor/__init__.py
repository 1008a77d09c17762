"""`ninfer-appliance doctor`: one check a file; each finds one thing that would keep the box from working well."""

from appliance.doctor import (
    artifact,
    cdi,
    clock,
    container,
    device,
    disk,
    driver,
    ecc,
    keys,
    memory,
    nodes,
    packages,
    permissions,
    port,
    power,
    triton,
)
from appliance.doctor.facts import Facts
from appliance.doctor.finding import Check, Finding
from appliance.doctor.look import look
from appliance.settings import Settings

CHECKS: tuple[tuple[str, Check], ...] = tuple(
    (module.NAME, module.check)
    for module in (
        permissions,
        keys,
        disk,
        memory,
        port,
        clock,
        packages,
        device,
        nodes,
        driver,
        container,
        cdi,
        power,
        ecc,
        triton,
        artifact,
    )
)

__all__ = ["CHECKS", "Check", "Facts", "Finding", "examine", "repair"]


def examine(settings: Settings, facts: Facts | None = None, *, hash_artifact: bool = True) -> list[Finding]:
    """Run every check on `facts`, by default those of this machine. What could not be looked at is a finding too.

    Without `hash_artifact` an artifact that was not verified before is only opened.
    """
    facts = look(settings, hash_artifact=hash_artifact) if facts is None else facts
    findings = [_run(name, check, settings, facts) for name, check in CHECKS if name not in facts.unseen]
    return findings + [
        Finding(check=name, level="bad", sentence=f"could not look: {reason}", command="ninfer-appliance status")
        for name, reason in facts.unseen.items()
    ]


def repair(findings: list[Finding]) -> list[str]:
    """Do the repairs we can do ourselves; returns what went wrong."""
    failed: list[str] = []
    for finding in findings:
        if finding.repair is not None:
            try:
                finding.repair()
            except OSError as error:
                failed.append(f"{finding.check}: {error}; type: {finding.command}")
    return failed


def _run(name: str, check: Check, settings: Settings, facts: Facts) -> Finding:
    try:
        return check(settings, facts)
    except Exception as error:
        # Whatever it is, the other checks are worth having.
        return Finding(
            check=name, level="bad", sentence=f"could not judge: {error!r}", command="ninfer-appliance status"
        )
