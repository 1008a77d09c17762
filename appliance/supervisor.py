"""supervisord's configuration: four programs, one Unix socket."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from appliance import processes
from appliance.run_folder import RunFiles
from appliance.settings import DRAIN_SECONDS, Settings, catalog_keys
from engine.exits import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Programs:
    """The command line of each program."""

    api: Sequence[str]
    controller: Sequence[str]
    engine: Sequence[str]
    fetch: Sequence[str]


@dataclass(frozen=True)
class Started:
    """A supervisord: its process id, and where all that it and its programs print can be read without waiting."""

    pid: int
    output: int


def default_programs(settings: Settings, files: RunFiles) -> Programs:
    """Our own programs, in this Python."""
    python = sys.executable
    options = settings.options
    fetch = ["downloader", settings.model, "--catalog", str(settings.catalog), "--dir", str(settings.models)]
    fetch += ["--catalog-policy", options.catalog_policy, "--catalog-keys", str(catalog_keys(options))]
    for source in (options.sources or "").split():
        fetch += ["--from", source]
    if options.offline:
        fetch.append("--offline")
    return Programs(
        api=[python, "-m", "engine.api", "--config", str(files.api_config)],
        controller=[python, "-m", "appliance.controller", str(files.controller_config)],
        engine=[python, "-m", "engine.core", "--config", str(files.engine_config)],
        fetch=[python, "-m", *fetch],
    )


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def render(template: str, files: RunFiles, programs: Programs, key: str, *, root: bool | None = None) -> str:
    """The configuration file. `key` is what clients of supervisord's socket must send.

    Raises:
        ConfigurationError: a command holds characters that supervisord's file cannot carry.
    """
    root = os.geteuid() == 0 if root is None else root
    return Template(template).substitute(
        run=_value(str(files.folder)),
        supervisor_socket=_value(str(files.supervisor_socket)),
        password=_value(key),
        # Without this line supervisord prints a critical warning as root, and with it it fails as anyone else.
        user="user=root" if root else "",
        controller=_command(programs.controller),
        api=_command(programs.api),
        engine=_command(programs.engine),
        fetch=_command(programs.fetch),
        api_stop_seconds=int(DRAIN_SECONDS) + 5,
        engine_stop_seconds=int(DRAIN_SECONDS) + 10,
    )


def start(files: RunFiles) -> Started:
    """Start supervisord with the configuration in the run folder, in a session of its own.

    Its output is a pipe of ours because its programs' log files are /dev/fd/1, which cannot be opened when it is the
    socket that systemd gives a unit.
    """
    output, child_output = os.pipe()
    os.set_blocking(output, False)
    environment = {**os.environ, processes.RUN_VARIABLE: str(files.folder)}
    environment.pop("NOTIFY_SOCKET", None)  # the start is ours to announce
    environment.pop("NINFER_API_KEY", None)  # in a file for api alone
    child = subprocess.Popen(
        [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(files.supervisor_config)],
        stdin=subprocess.DEVNULL,
        stdout=child_output,
        stderr=child_output,
        env=environment,
        start_new_session=True,
        preexec_fn=processes.die_with_parent(os.getpid()),  # noqa: PLW1509  (this process has one thread)
    )
    os.close(child_output)
    child.returncode = 0  # reaped with everything else that becomes our child
    return Started(child.pid, output)


def _command(words: Sequence[str]) -> str:
    return _value(shlex.join(words))


def _value(text: str) -> str:
    # The file has comments inside lines and no way to quote them, and expands %(name)s.
    if "\n" in text or " ;" in text or " #" in text:
        raise ConfigurationError(f"supervisord cannot carry {text!r}; use paths without line breaks, ' ;' and ' #'")
    return text.replace("%", "%%")
