"""Is the clock sane? Certificates are judged by it, and so are the ages of records."""

from datetime import UTC, datetime

from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "clock"
COMMAND = "sudo timedatectl set-ntp true"
EARLIEST = datetime(2026, 1, 1, tzinfo=UTC).timestamp()  # this program is younger
LATEST = datetime(2060, 1, 1, tzinfo=UTC).timestamp()
DAY = 86_400.0


def check(settings: Settings, facts: Facts) -> Finding:
    """Within reason, not behind our own last write, and kept by a time service."""
    shown = datetime.fromtimestamp(max(0.0, min(facts.now, 2 * LATEST)), UTC).strftime("%Y-%m-%d %H:%M UTC")
    if not EARLIEST <= facts.now < LATEST:
        sentence = f"the clock says {shown}: downloads will fail, because no certificate is valid then"
        return Finding(check=NAME, level="bad", sentence=sentence, command=COMMAND)
    if facts.newest is not None and facts.newest > facts.now + DAY:
        days = (facts.newest - facts.now) / DAY
        sentence = f"the clock says {shown}, {days:.0f} days before this home was last written"
        return Finding(check=NAME, level="warning", sentence=sentence, command=COMMAND)
    if facts.synchronised is False:
        sentence = f"the clock says {shown}, and no time service keeps it{' on the host' if facts.container else ''}"
        return Finding(check=NAME, level="warning", sentence=sentence, command=COMMAND)
    kept = ", synchronised" if facts.synchronised else ""
    return Finding(check=NAME, sentence=f"{shown}{kept}")
