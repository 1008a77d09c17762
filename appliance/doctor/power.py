"""Is a card held back by a low power limit?"""

from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "power"
LOW = 0.6  # of the default; down to here prefill slows a little and decoding hardly at all


def check(settings: Settings, facts: Facts) -> Finding:
    """The limit in force against the card's default."""
    told: list[str] = []
    for index, gpu in enumerate(facts.gpus):
        if gpu.power_limit is None or gpu.power_default is None:
            continue
        told.append(f"{gpu.power_limit:.0f} W of {gpu.power_default:.0f} W")
        if gpu.power_limit < LOW * gpu.power_default:
            return Finding(
                check=NAME,
                level="warning",
                sentence=f"card {index} ({gpu.name}) is limited to {told[-1]}: it is slower than it could be",
                command=f"sudo nvidia-smi -i {index} -pl {gpu.power_default:.0f}",
            )
    return Finding(check=NAME, sentence=f"limit {', '.join(told)}" if told else "no card tells its power limit")
