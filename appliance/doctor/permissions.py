"""May we write where we must, and can nobody else read the keys?"""

import os
import shlex
from pathlib import Path

from appliance.doctor.finding import Finding, Surroundings, existing_parent
from appliance.settings import Settings


def check(settings: Settings, world: Surroundings) -> Finding:
    """Home, cache and state are writable; state is closed to others. The artifacts may be read-only."""
    name = "permissions"
    for folder in (settings.home, settings.cache, settings.state):
        present = existing_parent(folder)
        if not present.is_dir():
            return Finding(
                check=name,
                good=False,
                sentence=f"{present} is a file, a folder is needed",
                command=f"mv {shlex.quote(str(present))} {shlex.quote(str(present) + '.old')}",
            )
        if not os.access(present, os.W_OK | os.X_OK):
            return Finding(
                check=name,
                good=False,
                sentence=f"{present} is not writable for user {os.geteuid()}",
                command=f"sudo chown -R {os.geteuid()}:{os.getegid()} {shlex.quote(str(present))}",
            )
    if settings.state.exists() and settings.state.stat().st_mode & 0o077:
        return Finding(
            check=name,
            good=False,
            sentence=f"{settings.state} is open to other users",
            command=f"chmod 700 {shlex.quote(str(settings.state))}",
            repair=lambda: _close(settings.state),
        )
    if not settings.home.exists():
        return Finding(check=name, good=True, sentence=f"{settings.home} can be made")
    return Finding(check=name, good=True, sentence=f"{settings.home} is writable")


def _close(folder: Path) -> None:
    folder.chmod(0o700)
