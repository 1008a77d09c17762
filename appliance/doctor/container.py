"""In a container: was it given the card, and may it use it? (case C10)"""

from appliance.doctor.device import used
from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "container"
NEEDED = frozenset({"nvidiactl", "nvidia-uvm"})


def check(settings: Settings, facts: Facts) -> Finding:
    """Device nodes, SELinux, groups; the remedy is one option of the command that made the container."""
    refused = facts.nvml_fault is not None and facts.nvml_fault.kind == "no_permission"
    if not facts.container:
        if refused and used(settings, facts):
            return Finding(
                check=NAME,
                level="bad",
                sentence=f"NVML refuses user {facts.user} ({facts.nvml_fault.message if facts.nvml_fault else ''})",
                command="export CUDA_VISIBLE_DEVICES=MIG-..., the slice that nvidia-smi -L shows for this user",
            )
        return Finding(check=NAME, sentence="not in a container")
    if not used(settings, facts):
        return Finding(check=NAME, sentence=f"in {facts.container}, without a card")
    missing = sorted(NEEDED - facts.nodes)
    if missing:
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"the machine has a card, but this container was not given /dev/{missing[0]}",
            command=f"{_run(facts)} {_device(facts)} ...",
        )
    if not refused and not facts.closed_nodes:
        return Finding(check=NAME, sentence=f"in {facts.container}, with the card")
    what = "NVML refuses" if refused else f"/dev/{sorted(facts.closed_nodes)[0]} may not be opened"
    if facts.confined:
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"{what}: SELinux keeps this container from the card",
            command=f"{_run(facts)} {_device(facts)} --security-opt label=disable ...",
        )
    if facts.container == "podman":
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"{what}: rootless podman dropped the group that may use the card",
            command=f"{_run(facts)} {_device(facts)} --group-add keep-groups ...",
        )
    return Finding(
        check=NAME,
        level="bad",
        sentence=f"{what}: the container was made before the driver, or without the NVIDIA runtime",
        command=f"{_run(facts)} {_device(facts)} ...",
    )


def _run(facts: Facts) -> str:
    return f"{'podman' if facts.container == 'podman' else 'docker'} run"


def _device(facts: Facts) -> str:
    return "--device nvidia.com/gpu=all" if facts.container == "podman" else "--gpus all"
