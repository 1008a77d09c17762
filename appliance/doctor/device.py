"""Is there a card, with a driver, that this process may open? Asked of the kernel, not of nvidia-smi."""

from appliance.doctor.finding import Finding, Surroundings
from appliance.settings import Settings

OLDEST_DRIVER = 525


def check(settings: Settings, world: Surroundings) -> Finding:
    """PCI bus, driver version, device nodes."""
    cards, driver = world.cards(), world.driver()
    wanted = settings.options.device
    if wanted == "cpu":
        return Finding(check="device", good=True, sentence="--device cpu: no card is used")
    if not cards:
        sentence = "no NVIDIA card on the PCI bus: the CPU is used"
        return Finding(
            check="device",
            good=wanted == "auto",
            sentence=sentence if wanted == "auto" else f"--device {wanted}, but no NVIDIA card is on the PCI bus",
            command="ninfer-appliance up --device cpu",
        )
    where = ", ".join(card.address for card in cards)
    if driver is None:
        return Finding(
            check="device",
            good=False,
            sentence=f"NVIDIA card at {where}, but no driver is loaded",
            command="sudo modprobe nvidia nvidia-uvm",
        )
    version = ".".join(map(str, driver))
    if driver[0] < OLDEST_DRIVER:
        return Finding(
            check="device",
            good=False,
            sentence=f"driver {version} is older than {OLDEST_DRIVER}",
            command="install a newer NVIDIA driver with your distribution's updater",
        )
    nodes = {node.name for node in world.device_nodes()}
    for node, command in (
        ("nvidiactl", "sudo nvidia-modprobe"),
        ("nvidia-uvm", "sudo nvidia-modprobe -u -c 0"),
    ):
        if node not in nodes:
            return Finding(check="device", good=False, sentence=f"/dev/{node} is missing", command=command)
    return Finding(check="device", good=True, sentence=f"{len(cards)} card at {where}, driver {version}")
