"""Are the driver's device nodes there? At boot nvidia-uvm may come seconds after the driver (case C1)."""

from appliance.doctor.device import used
from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "nodes"
NEEDED = (("nvidiactl", "sudo nvidia-modprobe -c 0"), ("nvidia-uvm", "sudo nvidia-modprobe -u -c 0"))


def check(settings: Settings, facts: Facts) -> Finding:
    """/dev/nvidiactl, /dev/nvidia-uvm and one /dev/nvidiaN at least."""
    if not used(settings, facts):
        return Finding(check=NAME, sentence="no card to have device nodes for")
    if facts.container:
        return Finding(check=NAME, sentence="in a container: the check `container` says what it was given")
    for node, command in NEEDED:
        if node not in facts.nodes:
            return Finding(check=NAME, level="bad", sentence=f"/dev/{node} is missing", command=command)
    cards = sorted(node for node in facts.nodes if node.removeprefix("nvidia").isdigit())
    if not cards:
        return Finding(
            check=NAME, level="bad", sentence="no /dev/nvidia0 or another card", command="sudo nvidia-modprobe -c 0"
        )
    closed = sorted(facts.closed_nodes)
    if closed:
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"user {facts.user} may not open {', '.join(f'/dev/{node}' for node in closed)}",
            command="sudo usermod -aG video,render $(id -un), then log in again",
        )
    return Finding(check=NAME, sentence=", ".join(f"/dev/{node}" for node in [*cards, "nvidiactl", "nvidia-uvm"]))
