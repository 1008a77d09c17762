"""The short folder for sockets and generated configuration, one for each home, and the names in it."""

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.exits import ConfigurationError

# sun_path holds 108 bytes with its final zero; supervisord binds a temporary name with its process id first.
SOCKET_PATH_BYTES = 107
LONGEST_NAME = "/supervisor.sock.4194304"


@dataclass(frozen=True)
class RunFiles:
    """Names in the run folder."""

    folder: Path

    @property
    def supervisor_socket(self) -> Path:
        return self.folder / "supervisor.sock"

    @property
    def engine_socket(self) -> Path:
        return self.folder / "engine.sock"

    @property
    def supervisor_key(self) -> Path:
        return self.folder / "supervisor.key"

    @property
    def supervisor_config(self) -> Path:
        return self.folder / "supervisord.conf"

    @property
    def api_config(self) -> Path:
        return self.folder / "api.json"

    @property
    def engine_config(self) -> Path:
        return self.folder / "engine.json"

    @property
    def controller_config(self) -> Path:
        return self.folder / "controller.json"

    @property
    def api_keys(self) -> Path:
        return self.folder / "api-keys"


def candidates(home: Path, environ: Mapping[str, str]) -> list[Path]:
    """Where the folder of `home` may lie, best first."""
    name = f"ninfer-{hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:12]}"
    found = [Path(environ["XDG_RUNTIME_DIR"]) / name] if environ.get("XDG_RUNTIME_DIR") else []
    return [*found, Path("/run/ninfer") / name, Path(tempfile.gettempdir()) / f"{name}-{os.geteuid()}"]


def fits(folder: Path) -> bool:
    """Whether a socket in `folder` has a path that the kernel takes."""
    return len(os.fsencode(folder)) + len(LONGEST_NAME) <= SOCKET_PATH_BYTES


def run_folder(home: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of `home`, made with mode 0700 when it is not there. The same home finds the same folder again.

    Raises:
        ConfigurationError: no candidate is writable, short enough and ours alone.
    """
    reasons: list[str] = []
    for folder in candidates(home, environ):
        if not fits(folder):
            reasons.append(f"{folder}: socket paths in it are over {SOCKET_PATH_BYTES} bytes")
            continue
        try:
            _make(folder)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
            continue
        return folder
    raise ConfigurationError(f"no folder for sockets: {'; '.join(reasons)}; set XDG_RUNTIME_DIR to a short folder")


def _make(folder: Path) -> None:
    if folder.parent == Path("/run/ninfer"):
        # Not /run itself: systemd's RuntimeDirectory= or the image makes this one.
        with contextlib.suppress(FileExistsError):
            folder.parent.mkdir(mode=0o755)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _ours(folder):
        raise PermissionError(f"{folder} belongs to someone else or is open to others; remove it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} is not writable")


def _ours(folder: Path) -> bool:
    # lstat: in a shared temporary folder somebody may have put a link in our place.
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
