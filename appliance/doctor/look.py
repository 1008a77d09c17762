"""Looks at this machine and this home, and writes down the `Facts`. Nothing is judged here, and nothing is changed."""

import contextlib
import ctypes
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, Protocol

from appliance.doctor.facts import Artifact, CdiSpec, Facts, Gpu, NvmlFault, Place
from appliance.doctor.packages import NEEDED
from appliance.nvml import Condition, Handle, NvidiaMl, NvmlError
from appliance.owner import running_owner
from appliance.probe import LinuxHost
from appliance.processes import port_owner
from appliance.run_folder import RunFiles, candidates
from appliance.settings import SETTINGS_FILE, Settings
from downloader.catalog import find, read_catalog
from downloader.verify import is_remembered, is_verified
from engine.artifact import Artifact as Container
from engine.exits import NInferError

CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
RUNTIMES = ("podman", "docker")
TIME_ERROR = 5  # of adjtimex(2): nothing keeps the clock
_TIMEX_BYTES = 512  # room for struct timex, which is 208 on 64 bits
_PATH = re.compile(r"[\"']?(?:hostPath|path)[\"']?\s*:\s*[\"']?(/[^\s\"',}]+)")
_VERSION = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)$")
_KEY = re.compile(r"^\s*(?:export\s+)?[\"']?(?:api-key|NINFER_API_KEY|HF_TOKEN)[\"']?\s*=\s*\S", re.MULTILINE)


class Management(Protocol):
    """What is asked of NVML."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def library_version(self) -> str: ...
    def devices(self) -> list[Handle]: ...
    def condition(self, handle: Handle) -> Condition: ...


def look(
    settings: Settings,
    *,
    hash_artifact: bool = True,
    nvml: Management | None = None,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
) -> Facts:
    """Everything the checks read. `root` is where /dev, /proc, /etc and /sys are.

    A fact that cannot be had is left at its default and named in `unseen`, by the check that needs it.
    """
    unseen: dict[str, str] = {}

    def try_to(name: str, question: Callable[[], Any], default: Any) -> Any:
        try:
            return question()
        except Exception as error:
            # Whatever it is, the other facts are worth having.
            unseen[name] = repr(error)
            return default

    host = LinuxHost()
    total, available = try_to("memory", host.memory, (0, 0))
    container = _container(root, environ)
    nodes = frozenset(path.name for path in (root / "dev").glob("nvidia*") if not path.is_dir())
    gpus, library, fault = try_to("driver", lambda: _nvml(nvml or NvidiaMl()), ((), "", None))
    own_box = try_to("port", lambda: running_owner(settings.state) is not None, False)
    return Facts(
        places=tuple(place(path) for path in (settings.home, settings.cache, settings.state)),
        state=place(settings.state),
        secrets=try_to("keys", lambda: tuple(place(path) for path in _secrets(settings, root, environ)), ()),
        free_bytes=try_to("disk", lambda: host.disk_free(settings.models), 0),
        memory_total=total,
        memory_available=available,
        port_holder=""
        if own_box
        else try_to("port", lambda: _holder(settings.options.host, settings.options.port), ""),
        own_box=own_box,
        packages={name: _version(name) for name in NEEDED},
        cards=tuple(try_to("device", host.pci_cards, ())),
        module=try_to("device", host.kernel_driver, None),
        nodes=nodes,
        closed_nodes=frozenset(node for node in nodes if not os.access(root / "dev" / node, os.R_OK | os.W_OK)),
        nvml_fault=fault,
        nvml_library=library,
        gpus=gpus,
        container=container,
        confined=bool(container) and ":container_t:" in _text(root / "proc/self/attr/current"),
        user=os.geteuid(),
        group=os.getegid(),
        runtimes=tuple(name for name in RUNTIMES if shutil.which(name, path=environ.get("PATH"))),
        cdi=try_to("cdi", lambda: tuple(cdi_specs(root / folder.relative_to("/") for folder in CDI_FOLDERS)), ()),
        now=time.time(),
        newest=_newest(settings),
        synchronised=_synchronised(),
        triton_cache=place(_triton_cache(environ)),
        artifact=try_to("artifact", lambda: _artifact(settings, hash_artifact=hash_artifact), Artifact()),
        unseen=unseen,
    )


def place(path: Path) -> Place:
    """What there is at `path`, or at the nearest path above it."""
    present = path
    while not _exists(present) and present != present.parent:
        present = present.parent
    found = present.stat()
    flags = os.statvfs(present).f_flag
    folder = stat.S_ISDIR(found.st_mode)
    return Place(
        path=path,
        present=present,
        folder=folder,
        writable=os.access(present, os.W_OK | (os.X_OK if folder else 0)),
        mode=stat.S_IMODE(found.st_mode),
        runs_code=not flags & os.ST_NOEXEC,
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:  # a folder above it is closed: that one is the news
        return False


def cdi_specs(folders: Iterable[Path]) -> Iterable[CdiSpec]:
    """The specifications of NVIDIA cards in `folders`, JSON or YAML: of both only lines with paths are read."""
    for folder in folders:
        for file in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml"), *folder.glob("*.json")]):
            text = _text(file)
            if "nvidia.com/" not in text:
                continue
            named = dict.fromkeys(_PATH.findall(text))
            versions = (_VERSION.search(path) for path in named)
            yield CdiSpec(
                path=file,
                missing=tuple(path for path in named if not Path(path).exists()),
                versions=frozenset(match[1] for match in versions if match),
            )


def _nvml(nvml: Management) -> tuple[tuple[Gpu, ...], str, NvmlFault | None]:
    library = ""
    try:
        with contextlib.suppress(NvmlError):
            library = nvml.library_version()
        nvml.start()
    except NvmlError as error:
        return (), library, NvmlFault(kind=error.kind, message=str(error))
    try:
        library = library or nvml.library_version()
        return tuple(_gpu(nvml, handle) for handle in nvml.devices()), library, None
    except NvmlError as error:
        return (), library, NvmlFault(kind=error.kind, message=str(error))
    finally:
        with contextlib.suppress(NvmlError):
            nvml.stop()


def _gpu(nvml: Management, handle: Handle) -> Gpu:
    try:
        found = nvml.condition(handle)
    except NvmlError:
        return Gpu(name=handle.name)
    return Gpu(
        name=handle.name,
        power_limit=found.power_limit,
        power_default=found.power_default,
        ecc=found.ecc,
        ecc_after_reboot=found.ecc_after_reboot,
        uncorrected_errors=found.uncorrected_errors,
    )


def _container(root: Path, environ: Mapping[str, str]) -> Literal["", "docker", "podman", "other"]:
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    return "other" if environ.get("container") else ""


def _secrets(settings: Settings, root: Path, environ: Mapping[str, str]) -> Iterable[Path]:
    for file in (settings.home / SETTINGS_FILE, root / "etc/ninfer/ninfer.env"):
        if _KEY.search(_text(file)):
            yield file
    for folder in candidates(settings.home, environ):
        keys = RunFiles(folder).api_keys
        if keys.exists():
            yield keys
    for pattern in ("*.key", "*key*.json", "*keys*"):
        yield from sorted(path for path in settings.state.glob(pattern) if path.is_file())


def _holder(host: str, port: int) -> str:
    """Who has the port; empty when a server could bind it now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError:
        return port_owner(port)
    return ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _newest(settings: Settings) -> float | None:
    """When this home was last written."""
    times: list[float] = []
    for folder in (settings.state, settings.cache):
        with contextlib.suppress(OSError):
            times += [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(folder)]
    return max(times, default=None)


def _synchronised() -> bool | None:
    """Whether something keeps the clock, by the kernel's word; None where it may not be asked."""
    state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if state < 0 else state != TIME_ERROR


def _triton_cache(environ: Mapping[str, str]) -> Path:
    if environ.get("TRITON_CACHE_DIR"):
        return Path(environ["TRITON_CACHE_DIR"]).absolute()
    home = environ.get("TRITON_HOME") or environ.get("HOME") or "/"
    return Path(home).absolute() / ".triton" / "cache"


def _artifact(settings: Settings, *, hash_artifact: bool) -> Artifact:
    path = settings.artifact
    pin = find(read_catalog(settings.catalog), settings.model) if settings.fetch else None
    if not path.exists():
        wanted = 0 if pin is None else pin.bytes
        return Artifact(present=False, bytes=wanted, fetchable=pin is not None and pin.url is not None)
    verified: bool | None = None
    if pin is not None:
        verified = is_verified(path, pin) if hash_artifact else is_remembered(path, pin) or None
    size = path.stat().st_size
    try:
        with Container.open(path) as container:
            return Artifact(bytes=size, name=container.name, verified=verified)
    except (NInferError, OSError) as error:
        return Artifact(bytes=size, verified=verified, fault=str(error))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
