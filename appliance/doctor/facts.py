"""Everything the checks read, as one record: a described machine can be examined like a real one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from appliance.nvml import FaultKind


@dataclass(frozen=True, kw_only=True)
class Place:
    """A path that we need. `present` is the path itself, or the nearest one above it that is there."""

    path: Path
    present: Path
    folder: bool = True  # of `present`, as all that follows
    writable: bool = True
    mode: int = 0o700
    runs_code: bool = True  # not on a file system mounted with noexec

    @property
    def exists(self) -> bool:
        """Whether the path itself is there."""
        return self.path == self.present


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One card as NVML describes it. None: it does not say, or the card has no such thing. Limits are in watts."""

    name: str
    power_limit: float | None = None
    power_default: float | None = None
    ecc: bool | None = None
    ecc_after_reboot: bool | None = None
    uncorrected_errors: int | None = None  # since the driver was loaded


@dataclass(frozen=True, kw_only=True)
class NvmlFault:
    """Why NVML did not start."""

    kind: FaultKind
    message: str


@dataclass(frozen=True, kw_only=True)
class CdiSpec:
    """One file that tells container runtimes which device nodes and libraries belong to a card."""

    path: Path
    missing: tuple[str, ...] = ()  # files it names that are not there
    versions: frozenset[str] = frozenset()  # of the driver's libraries that it names


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """The model file. `verified` is None when nothing vouches for its bytes or nobody has looked."""

    present: bool = True
    bytes: int = 0  # of the file, or of what is still to be fetched
    name: str = ""
    verified: bool | None = None
    fault: str = ""  # why it does not open
    fetchable: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a machine and of this home on it. Sizes are bytes, times are Unix seconds.

    `unseen` are facts that could not be had, with the reason; they keep their defaults.
    """

    places: tuple[Place, ...] = ()  # must be writable
    state: Place
    secrets: tuple[Place, ...] = ()  # files that hold a key
    free_bytes: int
    memory_total: int
    memory_available: int
    port_holder: str = ""  # empty: the port is free
    own_box: bool = False  # the box of this home runs
    packages: Mapping[str, str | None] = field(default_factory=dict)
    cards: tuple[str, ...] = ()  # bus addresses
    module: str | None = None  # version of the loaded kernel driver
    nodes: frozenset[str] = frozenset()  # names in /dev that begin with nvidia
    closed_nodes: frozenset[str] = frozenset()  # those that this process may not open
    nvml_fault: NvmlFault | None = None
    nvml_library: str = ""  # version
    gpus: tuple[Gpu, ...] = ()
    container: Literal["", "docker", "podman", "other"] = ""  # what we are in
    confined: bool = False  # SELinux enforces a container's label on us
    user: int = 0
    group: int = 0
    runtimes: tuple[str, ...] = ()  # container runtimes on this machine
    cdi: tuple[CdiSpec, ...] = ()
    now: float
    newest: float | None = None  # last write of ours
    synchronised: bool | None = None
    triton_cache: Place
    artifact: Artifact = field(default_factory=Artifact)
    unseen: Mapping[str, str] = field(default_factory=dict)
