"""May we write where we must, and is what is private closed to others?"""

import shlex

from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "permissions"


def check(settings: Settings, facts: Facts) -> Finding:
    """Home, cache and state are writable; state is closed to others. The artifacts may be read-only."""
    for place in facts.places:
        present = shlex.quote(str(place.present))
        if not place.folder:
            return Finding(
                check=NAME,
                level="bad",
                sentence=f"{place.present} is a file, a folder is needed",
                command=f"mv {present} {shlex.quote(str(place.present) + '.old')}",
            )
        if not place.writable:
            return Finding(
                check=NAME,
                level="bad",
                sentence=f"{place.present} is not writable for user {facts.user}",
                command=f"sudo chown -R {facts.user}:{facts.group} {present}",
            )
    state = facts.state
    if state.exists and state.mode & 0o077:
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"{state.path} is open to other users",
            command=f"chmod 700 {shlex.quote(str(state.path))}",
            repair=lambda: state.path.chmod(0o700),
        )
    if facts.places and not facts.places[0].exists:
        return Finding(check=NAME, sentence=f"{settings.home} can be made")
    return Finding(check=NAME, sentence=f"{settings.home} is writable")
