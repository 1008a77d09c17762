"""`ninfer-appliance status`: what `state.json` says, and what supervisord says of its programs."""

from pathlib import Path
from typing import Any

import msgspec

from appliance.access import certificate_file, running_config, shown_fingerprint
from appliance.owner import running_owner
from appliance.rpc import Supervisor, SupervisorGoneError
from appliance.run_folder import RunFiles
from appliance.settings import Settings
from engine.state_file import State, read_state

PLAN_ROWS = ("device", "max_context", "lanes", "kv_capacity", "kv_dtype")


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """One look. `programs` is empty when nothing runs or supervisord does not answer."""

    running: bool
    pid: int | None
    url: str
    fingerprint: str | None  # of the certificate; None without TLS
    state: State | None
    programs: dict[str, str]


def look(settings: Settings) -> Status:
    """The status of the box in this home."""
    owner = running_owner(settings.state)
    programs: dict[str, str] = {}
    if owner is not None:
        try:
            supervisor = Supervisor(RunFiles(Path(owner.run)))
            programs = {name: f"{info.state} {info.description}" for name, info in supervisor.programs().items()}
        except SupervisorGoneError:
            pass  # it starts or it stops
    try:
        state = read_state(settings.state_file)
    except (OSError, msgspec.MsgspecError):
        state = None
    pid = None if owner is None else owner.pid
    # What it was started with counts more than what this command was told.
    url = state.url if owner is not None and state is not None and state.url else settings.url
    certificate = certificate_file(settings)
    if owner is not None:
        config = running_config(RunFiles(Path(owner.run)))
        certificate = None if config.tls_certificate is None else Path(config.tls_certificate)
    return Status(
        running=owner is not None, pid=pid, url=url, fingerprint=shown_fingerprint(certificate), state=state,
        programs=programs,
    )  # fmt: skip


def lines(status: Status) -> list[str]:
    """The status for a person."""
    state = status.state
    if not status.running:
        last = "" if state is None else f"; the last one ended with status {state.exit_code}: {state.detail}"
        return [f"no box runs in this home{last if state is None or state.exit_code is not None else ''}"]
    found = [f"running (pid {status.pid}) at {status.url}"]
    if status.fingerprint is not None:
        found.append(f"certificate SHA-256 {status.fingerprint}")
    if state is not None:
        found.append(f"phase {state.phase}" + (f": {state.detail}" if state.detail else ""))
        if state.total:
            found.append(f"progress {state.done} of {state.total} {state.unit}")
        found.append(f"engine restarts {state.restarts}")
        found += [f"{name} {state.plan[name]}" for name in PLAN_ROWS if name in state.plan]
        found += [f"doctor: {one.sentence}; type: {one.command}" for one in state.findings if one.level != "ok"]
    return [*found, *(f"{name:<12}{text}" for name, text in status.programs.items())]


def as_json(status: Status) -> Any:
    """The status as plain data."""
    return msgspec.to_builtins(status)


def exit_status(status: Status) -> int:
    """0 ready, 1 running but not ready, 3 not running (as init scripts have it)."""
    if not status.running:
        return 3
    return 0 if status.state is not None and status.state.phase == "ready" else 1
