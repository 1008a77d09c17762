"""NVML behind a small protocol, with its error codes turned into what a person can do about them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import pynvml

FaultKind = Literal["no_driver", "not_ready", "mismatch", "no_permission", "lost", "other"]

_T = TypeVar("_T")
_KINDS: dict[int, FaultKind] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_driver",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "no_driver",
    pynvml.NVML_ERROR_UNKNOWN: "not_ready",
    pynvml.NVML_ERROR_NOT_READY: "not_ready",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "mismatch",
    pynvml.NVML_ERROR_NO_PERMISSION: "no_permission",
    pynvml.NVML_ERROR_GPU_IS_LOST: "lost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "lost",
}
# A driver without an entry answers with one of these; the question has an older form or no answer there.
_ABSENT = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_NO_DATA,
}


class NvmlError(Exception):
    """NVML answered with an error."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Memory:
    """One reading in bytes. `reserved` is the driver's own; total = free + used + reserved where it is known."""

    total: int
    free: int
    used: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Condition:
    """How a card is kept. Limits are in watts; None where the card has no such thing or does not say."""

    power_limit: float | None
    power_default: float | None
    ecc: bool | None
    ecc_after_reboot: bool | None
    uncorrected_errors: int | None  # since the driver was loaded


@dataclass(frozen=True, slots=True)
class Handle:
    """A device of NVML: a card, or a slice of one."""

    raw: Any
    name: str
    uuid: str
    compute_capability: tuple[int, int]


class Nvml(Protocol):
    """What the probe asks. Every method may raise NvmlError."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def driver_version(self) -> str: ...
    def library_version(self) -> str: ...
    def devices(self) -> list[Handle]:
        """Every card in bus order; a card that is split is replaced by its slices."""
        ...

    def memory(self, handle: Handle) -> Memory: ...
    def processes(self, handle: Handle) -> list[tuple[int, int | None]]:
        """(pid, bytes) of every program that holds memory."""
        ...


class NvidiaMl:
    """`Nvml` by nvidia-ml-py. `library` is its module."""

    def __init__(self, library: Any = pynvml) -> None:
        self._library = library

    def start(self) -> None:
        self._ask(self._library.nvmlInit)

    def stop(self) -> None:
        self._ask(self._library.nvmlShutdown)

    def driver_version(self) -> str:
        return str(self._ask(self._library.nvmlSystemGetDriverVersion))

    def library_version(self) -> str:
        return str(self._ask(self._library.nvmlSystemGetNVMLVersion))

    def devices(self) -> list[Handle]:
        found: list[Handle] = []
        for index in range(self._ask(self._library.nvmlDeviceGetCount)):
            raw = self._ask(self._library.nvmlDeviceGetHandleByIndex, index)
            slices = self._slices(raw)
            found += [self._handle(item, raw) for item in slices] if slices is not None else [self._handle(raw, raw)]
        return found

    def memory(self, handle: Handle) -> Memory:
        # Version 2 tells reserved from used; version 1 counts them together.
        answer = self._optional(self._library.nvmlDeviceGetMemoryInfo, handle.raw, self._library.nvmlMemory_v2)
        if answer is None:
            answer = self._ask(self._library.nvmlDeviceGetMemoryInfo, handle.raw)
        return Memory(answer.total, answer.free, answer.used, int(getattr(answer, "reserved", 0)))

    def processes(self, handle: Handle) -> list[tuple[int, int | None]]:
        found: dict[int, int | None] = {}
        for question in (
            self._library.nvmlDeviceGetComputeRunningProcesses,
            self._library.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            for item in self._optional(question, handle.raw) or []:
                found[item.pid] = item.usedGpuMemory
        return list(found.items())

    def condition(self, handle: Handle) -> Condition:
        """Power and error correction. A slice of a card has neither."""
        library, raw = self._library, handle.raw
        limit = self._optional(library.nvmlDeviceGetEnforcedPowerLimit, raw)
        default = self._optional(library.nvmlDeviceGetPowerManagementDefaultLimit, raw)
        ecc = self._optional(library.nvmlDeviceGetEccMode, raw)
        errors = self._optional(
            library.nvmlDeviceGetTotalEccErrors,
            raw,
            library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            library.NVML_VOLATILE_ECC,
        )
        return Condition(
            power_limit=None if limit is None else limit / 1000,
            power_default=None if default is None else default / 1000,
            ecc=None if ecc is None else bool(ecc[0]),
            ecc_after_reboot=None if ecc is None else bool(ecc[1]),
            uncorrected_errors=None if errors is None else int(errors),
        )

    def _handle(self, raw: Any, card: Any) -> Handle:
        major, minor = self._ask(self._library.nvmlDeviceGetCudaComputeCapability, card)
        return Handle(
            raw,
            str(self._ask(self._library.nvmlDeviceGetName, raw)),
            str(self._ask(self._library.nvmlDeviceGetUUID, raw)),
            (major, minor),
        )

    def _slices(self, card: Any) -> list[Any] | None:
        """Slices of a card in MIG mode, which is then no device itself; None when it is whole."""
        mode = self._optional(self._library.nvmlDeviceGetMigMode, card)
        if mode is None or mode[0] != self._library.NVML_DEVICE_MIG_ENABLE:
            return None
        count = self._ask(self._library.nvmlDeviceGetMaxMigDeviceCount, card)
        found = (self._optional(self._library.nvmlDeviceGetMigDeviceHandleByIndex, card, i) for i in range(count))
        return [item for item in found if item is not None]

    def _ask(self, question: Callable[..., _T], *arguments: Any) -> _T:
        try:
            return question(*arguments)
        except self._library.NVMLError as error:
            raise NvmlError(_KINDS.get(error.value, "other"), str(error)) from error

    def _optional(self, question: Callable[..., _T], *arguments: Any) -> _T | None:
        try:
            return question(*arguments)
        except self._library.NVMLError as error:
            if error.value in _ABSENT:
                return None
            raise NvmlError(_KINDS.get(error.value, "other"), str(error)) from error
