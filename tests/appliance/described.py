"""Described machines, and hand-driven stand-ins for the operating system, NVML and time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from appliance.machine import Card, Machine, Process
from appliance.nvml import FaultKind, Handle, Memory, NvmlError
from engine.plan import GIB, MIB

RTX_3090 = "NVIDIA GeForce RTX 3090"
DRIVER_RESERVED = 310 * MIB


def card_3090(taken_gib: float = 0.0, index: int = 0) -> Card:
    """A 3090 with 24,576 MiB, of which others hold `taken_gib`."""
    taken = round(taken_gib * GIB)
    processes = (Process(pid=4242, name="plasmashell", used_bytes=taken),) if taken else ()
    return Card(
        index=index,
        name=RTX_3090,
        uuid=f"GPU-{index}",
        total_bytes=24_576 * MIB,
        reserved_bytes=DRIVER_RESERVED,
        used_bytes=taken,
        free_bytes=24_576 * MIB - DRIVER_RESERVED - taken,
        compute_capability=(8, 6),
        processes=processes,
    )


def machine(*cards: Card, fault: str = "", pci: int | None = None) -> Machine:
    """A machine with these cards, 64 GiB of memory and 200 GiB of disk."""
    count = len(cards) if pci is None else pci
    return Machine(
        cards=cards,
        pci_cards=tuple(f"0000:0{index + 1}:00.0" for index in range(count)),
        driver="580.95.05" if cards else "",
        fault=fault,
        cpu_count=8,
        host_total_bytes=64 * GIB,
        host_available_bytes=60 * GIB,
        disk_free_bytes=200 * GIB,
    )


@dataclass
class HandClock:
    """Time that passes only by sleeping."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@dataclass
class DescribedHost:
    """An operating system with `cards` on the bus; device nodes appear at `nodes_at`."""

    clock: HandClock
    cards: Sequence[str] = ("0000:01:00.0",)
    module: str | None = "580.95.05"
    nodes_at: float = 0.0
    names: dict[int, str] = field(default_factory=dict)

    def pci_cards(self) -> Sequence[str]:
        return self.cards

    def kernel_driver(self) -> str | None:
        return self.module

    def exists(self, path: str) -> bool:
        return self.clock.now >= self.nodes_at

    def memory(self) -> tuple[int, int]:
        return 64 * GIB, 60 * GIB

    def cpu_count(self) -> int:
        return 8

    def disk_free(self, folder: Path) -> int:
        return 200 * GIB

    def process_name(self, pid: int) -> str:
        return self.names.get(pid, "")


@dataclass
class DescribedNvml:
    """NVML whose answers follow the clock. `free_mib` is a list of (from second, MiB free), in order of time."""

    clock: HandClock
    free_mib: Sequence[tuple[float, int]] = ((0.0, 23_766),)
    up_at: float = 0.0
    down: FaultKind = "not_ready"
    refuses_memory: FaultKind | None = None
    holders: Sequence[tuple[int, float]] = ()  # pid, and the second it is gone at
    handles: Sequence[Handle] = (Handle("h0", RTX_3090, "GPU-0", (8, 6)),)
    starts: int = 0
    stops: int = 0

    def start(self) -> None:
        self.starts += 1
        if self.clock.now < self.up_at:
            raise NvmlError(
                self.down, "Driver/library version mismatch" if self.down == "mismatch" else "Unknown Error"
            )

    def stop(self) -> None:
        self.stops += 1

    def driver_version(self) -> str:
        return "580.95.05"

    def library_version(self) -> str:
        return "13.590.44"

    def devices(self) -> list[Handle]:
        return list(self.handles)

    def memory(self, handle: Handle) -> Memory:
        if self.refuses_memory is not None:
            raise NvmlError(self.refuses_memory, "Insufficient Permissions")
        free = [mib for begin, mib in self.free_mib if self.clock.now >= begin][-1]
        return Memory(24_576 * MIB, free * MIB, (24_576 - 310 - free) * MIB, 310 * MIB)

    def processes(self, handle: Handle) -> list[tuple[int, int | None]]:
        return [(pid, 500 * MIB) for pid, gone in self.holders if self.clock.now < gone]
