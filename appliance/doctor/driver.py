"""Do the kernel driver and its libraries agree? After an unattended update they may not (case C11)."""

from appliance.doctor.device import used
from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "driver"


def check(settings: Settings, facts: Facts) -> Finding:
    """NVML starts, or says why not. A refusal of rights is the check `container`'s."""
    if not used(settings, facts):
        return Finding(check=NAME, sentence="no driver to ask")
    fault, library = facts.nvml_fault, facts.nvml_library or "unknown"
    if fault is None or fault.kind == "no_permission":
        return Finding(check=NAME, sentence=f"module {facts.module}, NVML {library}")
    if fault.kind == "mismatch":
        place = "the host" if facts.container else "this machine"
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"driver and library versions differ (module {facts.module}, library {library}): reboot {place}",
            command="sudo reboot",
        )
    if fault.kind == "no_driver":
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"module {facts.module} is loaded, but its libraries are not found ({fault.message})",
            command=_given(facts)
            if facts.container
            else "install your distribution's NVIDIA libraries (libcuda, NVML)",
        )
    if fault.kind == "lost":
        return Finding(
            check=NAME, level="bad", sentence=f"a card needs a reset ({fault.message})", command="sudo reboot"
        )
    # Case C2: a reload of systemd takes a running container's devices away, and NVML calls it an unknown error.
    return Finding(
        check=NAME,
        level="bad",
        sentence=f"NVML says {fault.message}"
        + ("; a container that lost its device must be made again" if facts.container else ""),
        command=_given(facts) if facts.container else "sudo dmesg | grep -i nvrm | tail",
    )


def _given(facts: Facts) -> str:
    return "podman run --device nvidia.com/gpu=all ..." if facts.container == "podman" else "docker run --gpus all ..."
