"""The probe: looks at this machine until what it sees has settled, and writes it down as a `Machine`.

Nothing is decided here. A card that cannot be used is reported as a fault, and `appliance.sizing` says what that means
for the model that is asked for.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from appliance.machine import Card, Machine, Process
from appliance.nvml import Handle, Memory, Nvml, NvmlError
from appliance.pci import driver_version, nvidia_cards
from engine.log import get_logger

log = get_logger(__name__)

Report = Callable[[str], None]

DRIVER_SECONDS = 60.0  # for a driver that is still coming up at boot
NODE_SECONDS = 20.0  # for its device nodes; CUDA itself may make them later
SETTLE_SECONDS = 60.0  # for the memory of a process that has ended
READINGS = 3
READING_SECONDS = 0.5
STEADY_BYTES = 4 << 20  # readings this close are equal: a desktop always moves a little
CUDA_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")


class Clock(Protocol):
    """Time, which tests drive by hand."""

    def monotonic(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class Host(Protocol):
    """What is asked of the operating system."""

    def pci_cards(self) -> Sequence[str]:
        """Bus addresses of NVIDIA display devices."""
        ...

    def kernel_driver(self) -> str | None:
        """Version of the loaded NVIDIA kernel module."""
        ...

    def exists(self, path: str) -> bool: ...
    def memory(self) -> tuple[int, int]:
        """Total and available bytes."""
        ...

    def cpu_count(self) -> int: ...
    def disk_free(self, folder: Path) -> int:
        """Free bytes where `folder` is, or will be."""
        ...

    def process_name(self, pid: int) -> str: ...


class RuntimeMemory(Protocol):
    """The CUDA runtime's own answer for a device: (free, total) bytes, or None where it has none."""

    def __call__(self, uuid: str) -> tuple[int, int] | None: ...


class SystemClock:
    """The real clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class LinuxHost:
    """The machine we run on."""

    def pci_cards(self) -> Sequence[str]:
        return [card.address for card in nvidia_cards()]

    def kernel_driver(self) -> str | None:
        version = driver_version()
        return None if version is None else ".".join(map(str, version))

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def memory(self) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        total, available = memory.total, memory.available
        # In a container the machine's memory is not ours to use.
        limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
        if limit is not None:
            total = min(total, limit)
            available = min(available, max(0, limit - (used or 0)))
        return total, available

    def cpu_count(self) -> int:
        return len(os.sched_getaffinity(0))

    def disk_free(self, folder: Path) -> int:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return psutil.disk_usage(str(folder)).free

    def process_name(self, pid: int) -> str:
        try:
            return psutil.Process(pid).name()
        except psutil.Error:
            return ""


@dataclass(frozen=True, kw_only=True)
class Senses:
    """Everything the probe looks through, and where it says what it waits for."""

    host: Host
    nvml: Nvml
    clock: Clock
    runtime_memory: RuntimeMemory
    environ: Mapping[str, str]
    report: Report = lambda line: None


def probe(senses: Senses, *, folder: Path, wait_for_driver: bool = True, gone: Collection[int] = ()) -> Machine:
    """Everything a plan depends on. Takes a second on a settled machine with a card, nothing without one.

    `folder` is where artifacts go. `gone` are processes of ours whose memory must be back before sizes mean anything.
    Every wait is bounded and is reported; what was seen last is used then, and a note says so.
    """
    host, nvml = senses.host, senses.nvml
    pci = tuple(host.pci_cards())
    cards: list[Card] = []
    notes: list[str] = []
    driver, fault = "", ""
    try:
        # A machine without a card on its bus may still have one behind NVML (WSL); nobody waits for that.
        _start(senses, patient=wait_for_driver and bool(pci))
    except NvmlError as error:
        fault = _explain(senses, error) if pci else ""
    else:
        try:
            driver = nvml.driver_version()
            if pci:
                notes += _wait_for_nodes(senses)
            cards, seen = _cards(senses, gone)
            notes += seen
        except NvmlError as error:
            fault = _explain(senses, error)
        finally:
            nvml.stop()
    total, available = host.memory()
    machine = Machine(
        cards=tuple(cards),
        pci_cards=pci,
        driver=driver,
        fault=fault,
        cpu_count=host.cpu_count(),
        host_total_bytes=total,
        host_available_bytes=available,
        disk_free_bytes=host.disk_free(folder),
        notes=tuple(notes),
    )
    log.info("machine_probed", cards=len(cards), driver=driver, fault=fault, host_available_bytes=available)
    for card in cards:
        log.info(
            "card_probed",
            device=card.device,
            name=card.name,
            free_bytes=card.free_bytes,
            used_bytes=card.used_bytes,
            reserved_bytes=card.reserved_bytes,
            others=len(card.processes),
        )
    return machine


def _start(senses: Senses, *, patient: bool) -> None:
    """Initialise NVML; at boot the driver may not be up yet (case C1)."""
    clock = senses.clock
    deadline = clock.monotonic() + DRIVER_SECONDS
    pause = READING_SECONDS
    while True:
        try:
            senses.nvml.start()
            return
        except NvmlError as error:
            waits = patient and error.kind in ("no_driver", "not_ready", "other")
            if not waits or clock.monotonic() + pause > deadline:
                raise
            missing = _missing_node(senses.host)
            senses.report(f"waiting for GPU: {f'{missing} missing' if missing else error}")
            log.info("waiting_for_driver", reason=str(error), missing=missing)
        clock.sleep(pause)
        pause = min(2 * pause, 8.0)


def _missing_node(host: Host) -> str | None:
    return next((node for node in CUDA_NODES if not host.exists(node)), None)


def _wait_for_nodes(senses: Senses) -> list[str]:
    deadline = senses.clock.monotonic() + NODE_SECONDS
    while (missing := _missing_node(senses.host)) is not None:
        if senses.clock.monotonic() >= deadline:
            return [f"{missing} is missing; CUDA must make it, or the engine ends with exit status 4"]
        senses.report(f"waiting for GPU: {missing} missing")
        senses.clock.sleep(2 * READING_SECONDS)
    return []


def _cards(senses: Senses, gone: Collection[int]) -> tuple[list[Card], list[str]]:
    nvml = senses.nvml
    handles, notes = _visible(nvml.devices(), senses.environ.get("CUDA_VISIBLE_DEVICES"))
    cards: list[Card] = []
    for index, handle in enumerate(handles):
        reading, note = _settled(senses, handle, gone)
        notes += [note] if note else []
        processes = (
            Process(pid=pid, name=senses.host.process_name(pid), used_bytes=used)
            for pid, used in _processes(nvml, handle)
        )
        cards.append(
            Card(
                index=index,
                name=handle.name,
                uuid=handle.uuid,
                total_bytes=reading.total,
                free_bytes=reading.free,
                used_bytes=reading.used,
                reserved_bytes=reading.reserved,
                compute_capability=handle.compute_capability,
                processes=tuple(processes),
            )
        )
    return cards, notes


def _visible(handles: list[Handle], visible: str | None) -> tuple[list[Handle], list[str]]:
    """The devices that CUDA numbers from 0: those of CUDA_VISIBLE_DEVICES, in its order, up to the first unknown."""
    if visible is None:
        return handles, []
    chosen: list[Handle] = []
    for item in (part.strip() for part in visible.split(",")):
        if item.isdigit() and int(item) < len(handles):
            match = [handles[int(item)]]
        else:
            match = [handle for handle in handles if item and handle.uuid.startswith(item)]
        if len(match) != 1:
            break
        chosen += match
    note = f"CUDA_VISIBLE_DEVICES={visible} shows {len(chosen)} of {len(handles)} devices"
    return chosen, [note] if len(chosen) != len(handles) else []


def _settled(senses: Senses, handle: Handle, gone: Collection[int]) -> tuple[Memory, str]:
    """A reading of memory that is not in the middle of a release (case V1): three equal ones in a row."""
    nvml, clock = senses.nvml, senses.clock
    deadline = clock.monotonic() + SETTLE_SECONDS
    began = clock.monotonic()
    last: list[Memory] = []
    while True:
        try:
            last.append(nvml.memory(handle))
        except NvmlError as error:
            # Inside a slice NVML may refuse, or answer for the whole card, which must never be planned from (case V7).
            if error.kind != "no_permission":
                raise
            answer = senses.runtime_memory(handle.uuid)
            if answer is None:
                raise
            free, total = answer
            note = f"NVML refuses the memory of {handle.name} ({error}); sized from the CUDA runtime instead"
            return Memory(total, free, total - free, 0), note
        last = last[-READINGS:]
        free_now = [reading.free for reading in last]
        alive = sorted({pid for pid, _ in _processes(nvml, handle)} & set(gone))
        steady = len(last) == READINGS and max(free_now) - min(free_now) <= STEADY_BYTES
        if steady and not alive:
            waited = clock.monotonic() - began
            if waited > READINGS * READING_SECONDS:
                log.info("memory_settled", seconds=round(waited, 1), free_bytes=last[-1].free)
            return last[-1], ""
        if clock.monotonic() >= deadline:
            least = min(last, key=lambda reading: reading.free)
            why = f"process {alive[0]} still holds memory" if alive else "it kept changing"
            note = (
                f"free memory of {handle.name} did not settle in {SETTLE_SECONDS:.0f} s ({why}); "
                f"planned from the least of the last readings, {least.free >> 20} MiB"
            )
            log.warning("memory_not_settled", reason=why, free_bytes=least.free)
            return least, note
        if len(last) == READINGS:
            senses.report(f"waiting for free memory of {handle.name} to settle: {last[-1].free >> 20} MiB")
        clock.sleep(READING_SECONDS)


def _processes(nvml: Nvml, handle: Handle) -> list[tuple[int, int | None]]:
    try:
        return nvml.processes(handle)
    except NvmlError:
        return []  # who holds memory is good to know; how much is free is what counts


def _explain(senses: Senses, error: NvmlError) -> str:
    """What a person can do about it, in one line."""
    module = senses.host.kernel_driver()
    match error.kind:
        case "mismatch":  # case C11
            try:
                library = senses.nvml.library_version()
            except NvmlError:
                library = "unknown"
            return f"driver and library versions differ (module {module or 'unknown'}, library {library}): reboot"
        case "no_driver" if module is None:
            return "no NVIDIA driver is loaded; install the distribution's NVIDIA driver and reboot"
        case "no_driver":
            return f"kernel driver {module} is loaded but NVML is not found; install the driver's libraries ({error})"
        case "no_permission":  # case V7
            return (
                f"NVML refuses ({error}) and the CUDA runtime does not answer; "
                "name the slice with CUDA_VISIBLE_DEVICES=MIG-..., and give this user the device"
            )
        case "not_ready":  # case C2
            return f"NVML says {error}; a container that lost its device must be made again"
        case "lost":
            return f"the card needs a reset or a reboot ({error})"
        case _:
            return f"NVML says {error}"


def _cgroup_bytes(name: str, root: Path = Path("/sys/fs/cgroup")) -> int | None:
    try:
        text = (root / name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
