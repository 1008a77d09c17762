"""Is there a card, with a driver? Asked of the kernel, not of nvidia-smi."""

from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "device"
OLDEST_DRIVER = 525


def check(settings: Settings, facts: Facts) -> Finding:
    """PCI bus and driver version."""
    wanted = settings.options.device
    if wanted == "cpu":
        return Finding(check=NAME, sentence="--device cpu: no card is used")
    if not facts.cards:
        if facts.gpus:  # WSL has cards that are on no bus
            return Finding(check=NAME, sentence=f"{facts.gpus[0].name}, which is on no PCI bus")
        if wanted == "auto":
            return Finding(check=NAME, sentence="no NVIDIA card on the PCI bus: the CPU is used")
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"--device {wanted}, but no NVIDIA card is on the PCI bus",
            command="ninfer-appliance up --device cpu",
        )
    where = ", ".join(facts.cards)
    if facts.module is None:
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"NVIDIA card at {where}, but no driver is loaded",
            command="sudo modprobe nvidia nvidia-uvm",
        )
    if int(facts.module.partition(".")[0]) < OLDEST_DRIVER:
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"driver {facts.module} is older than {OLDEST_DRIVER}",
            command="install a newer NVIDIA driver with your distribution's updater",
        )
    count = len(facts.cards)
    return Finding(check=NAME, sentence=f"{count} card{'s' if count > 1 else ''} at {where}, driver {facts.module}")


def used(settings: Settings, facts: Facts) -> bool:
    """Whether a card with a loaded driver is wanted: otherwise there is nothing to ask about it."""
    return settings.options.device != "cpu" and bool(facts.cards) and facts.module is not None
