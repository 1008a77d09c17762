"""How our programs end: one status a cause, and the errors that carry it (design: processes)."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Status of the `engine` program. `ninfer-serve` maps it to the seed's codes with `seed_status`."""

    CLEAN = 0
    CONFIGURATION = 2
    RUNTIME = 3
    NO_DEVICE = 4
    BAD_ARTIFACT = 5
    DOES_NOT_FIT = 6


def seed_status(code: int) -> int:
    """The seed project's status for one of ours: 0 clean, 3 engine failure, 1 anything that stopped the start."""
    if code in (ExitCode.CLEAN, ExitCode.RUNTIME):
        return code
    return 1


class NInferError(Exception):
    """An error a person must read. The message names the thing, its value, and what would work."""

    exit_code = ExitCode.RUNTIME


class ConfigurationError(NInferError):
    """A setting is wrong or names something this version cannot do."""

    exit_code = ExitCode.CONFIGURATION


class NoDeviceError(NInferError):
    """No usable device for this artifact."""

    exit_code = ExitCode.NO_DEVICE


class ArtifactError(NInferError):
    """The artifact is damaged, of another version, or incomplete."""

    exit_code = ExitCode.BAD_ARTIFACT


class DoesNotFitError(NInferError):
    """The requested sizes do not fit in memory."""

    exit_code = ExitCode.DOES_NOT_FIT
