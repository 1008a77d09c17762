"""Can nobody else read the keys?"""

import shlex

from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "keys"


def check(settings: Settings, facts: Facts) -> Finding:
    """Every file with a key or a token in it is its owner's alone (a reader of the group is one reader too many)."""
    open_to_others = [place for place in facts.secrets if place.exists and place.mode & 0o077]
    if not open_to_others:
        count = len([place for place in facts.secrets if place.exists])
        return Finding(check=NAME, sentence=f"{count} file{'s' if count != 1 else ''} with keys, closed to others")
    files = [place.path for place in open_to_others]

    def close() -> None:
        for file in files:
            file.chmod(0o600)

    return Finding(
        check=NAME,
        level="bad",
        sentence=f"{', '.join(map(str, files))} can be read by others and holds a key",
        command=f"chmod 600 {shlex.join(map(str, files))}",
        repair=close,
    )
