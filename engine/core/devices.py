"""Which device, what is free on it, and what this process holds there."""

from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch

from engine.exits import NoDeviceError


@dataclass(frozen=True)
class Machine:
    """A device with its number type, its free bytes, and the bytes this process holds on it."""

    device: torch.device
    dtype: torch.dtype
    free: Callable[[], int]
    held: Callable[[], int]


def choose(name: str) -> Machine:
    """`auto` takes the first CUDA device if there is one, else the CPU; a number takes that CUDA device.

    Raises:
        NoDeviceError: there is no such CUDA device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return cpu()
    index = 0 if name == "auto" else int(name)
    if index >= count:
        raise NoDeviceError(f"device {name}: {count} CUDA devices are usable here; use --device auto or cpu")
    return cuda(index)


def cpu() -> Machine:
    """Host memory; weights and activations are float32 there."""
    process = psutil.Process()
    return Machine(
        device=torch.device("cpu"),
        dtype=torch.float32,
        free=lambda: int(psutil.virtual_memory().available),
        held=lambda: int(process.memory_info().rss),
    )


def cuda(index: int) -> Machine:
    """One CUDA device; weights and activations are bfloat16 there."""
    device = torch.device("cuda", index)
    return Machine(
        device=device,
        dtype=torch.bfloat16,
        free=lambda: torch.cuda.mem_get_info(device)[0],
        held=lambda: torch.cuda.memory_reserved(device),
    )
