"""Does a card's memory make errors?"""

from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "ecc"


def check(settings: Settings, facts: Facts) -> Finding:
    """Uncorrected errors, and a mode that waits for a reboot (it changes how much memory there is)."""
    modes: list[str] = []
    for index, gpu in enumerate(facts.gpus):
        where = f"card {index} ({gpu.name})"
        if gpu.uncorrected_errors:
            return Finding(
                check=NAME,
                level="bad",
                sentence=f"{where} had {gpu.uncorrected_errors} memory errors that could not be corrected",
                command="sudo reboot, and replace the card if they come back",
            )
        if gpu.ecc_after_reboot is not None and gpu.ecc is not None and gpu.ecc_after_reboot != gpu.ecc:
            return Finding(
                check=NAME,
                level="warning",
                sentence=f"{where} turns error correction {'on' if gpu.ecc_after_reboot else 'off'} at the next reboot",
                command="sudo reboot",
            )
        if gpu.ecc is not None:
            modes.append("on" if gpu.ecc else "off")
    return Finding(check=NAME, sentence=f"error correction {', '.join(modes)}" if modes else "no card corrects errors")
