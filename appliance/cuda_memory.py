"""Free memory as CUDA sees it, without torch: for devices that NVML does not answer for.

Asking makes a CUDA context, which holds hundreds of MiB until the process ends. So it is asked in a process of its own.
"""

import ctypes
import os
import subprocess
import sys
from typing import Any


def query(driver: Any) -> tuple[int, int]:
    """(free, total) bytes of device 0 by the CUDA driver library `driver`.

    Raises:
        OSError: CUDA answered with an error.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    steps: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemGetInfo_v2", (ctypes.byref(free), ctypes.byref(total))),
    )
    for name, arguments in steps:
        code = getattr(driver, name)(*arguments)
        if code:
            raise OSError(f"{name} answered {code}")
    return free.value, total.value


def runtime_memory(uuid: str) -> tuple[int, int] | None:
    """(free, total) bytes of the device with this UUID; None when CUDA does not answer within a minute."""
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": uuid}
    command = [sys.executable, "-m", "appliance.cuda_memory"]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        free, total = done.stdout.split()
        return int(free), int(total)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


if __name__ == "__main__":
    try:
        sys.stdout.write("{} {}\n".format(*query(ctypes.CDLL("libcuda.so.1"))))
    except OSError as error:
        sys.exit(str(error))
