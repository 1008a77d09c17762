"""Is there enough memory in the machine?"""

from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "memory"
PROGRAMS_BYTES = 2 << 30  # api, controller, the engine's own; the planner knows the rest


def check(settings: Settings, facts: Facts) -> Finding:
    """The programs, and the weights where they stay in host memory. `plan` counts exactly."""
    weights = facts.artifact.bytes if not facts.cards or settings.options.device == "cpu" else 0
    need = PROGRAMS_BYTES + weights
    told = f"{facts.memory_available / 2**30:.1f} of {facts.memory_total / 2**30:.1f} GiB available"
    if facts.own_box or facts.memory_available >= need:
        return Finding(check=NAME, sentence=told)
    return Finding(
        check=NAME,
        level="bad" if facts.memory_total < need else "warning",
        sentence=f"{told}, at least {need / 2**30:.1f} GiB needed",
        command="ps -eo rss,pid,comm --sort=-rss | head",
    )
