"""`ninfer-appliance up`: PID 1 of a container, ExecStart of a unit, or a foreground command.

It starts supervisord as its child, in a session of its own so that a terminal's Ctrl-C reaches `up` alone, reaps what
is orphaned, tells systemd how the start goes, and ends with the status that the controller left in `state.json`.
"""

import errno
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from appliance import processes
from appliance.access import check_access, shown_fingerprint, tls_files
from appliance.controller_config import ControllerConfig
from appliance.owner import Lock
from appliance.policy import Policy
from appliance.run_folder import RunFiles, run_folder
from appliance.settings import DRAIN_SECONDS, Settings, etc_file, settings_lines, values_as_text
from appliance.supervisor import Programs, default_programs, render, start, write_private
from engine.exits import ConfigurationError
from engine.log import configure, get_logger
from engine.options import Options, rows_of

log = get_logger(__name__)

SWEEP_SECONDS = 5.0  # for leftovers of a killed box to end by themselves


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to start; tests put scripted programs here."""

    programs: Callable[[Settings, RunFiles], Programs] = default_programs
    policy: Policy = field(default_factory=Policy)


def run(settings: Settings, launch: Launch = Launch()) -> int:
    """Run the box until it is stopped or fails; returns the exit status.

    Raises:
        ConfigurationError: the box cannot start: home taken, port taken, folder not writable.
    """
    options = settings.options
    configure("up", options.log_level, json=options.log_json)
    settings.make_folders()
    files = RunFiles(run_folder(settings.home))
    lock = Lock(settings.state)
    previous = lock.acquire(files.folder)
    try:
        _print_settings(settings)
        for folder in {files.folder, *([Path(previous.run)] if previous is not None else [])}:
            count = processes.end(processes.leftovers(folder), SWEEP_SECONDS)
            if count:
                log.warning("leftovers_ended", count=count, run=str(folder))
        check_access(settings)
        tls = tls_files(settings)
        check_port(options.host, options.port)
        check_request_log(options.request_log_jsonl)
        if tls is not None:
            log.info("certificate", file=str(tls[0]), sha256=shown_fingerprint(tls[0]))
        _write_files(settings, files, launch, tls)
        settings.state_file.unlink(missing_ok=True)  # what it says is of an earlier box
        processes.become_subreaper()
        with processes.Signals() as signals:
            started = start(files)
            try:
                # The api is on its way by now; watching needs modules that would have delayed it.
                from appliance import banner  # noqa: PLC0415
                from appliance.box import Box, display  # noqa: PLC0415

                print_banner(settings, banner.facts(settings))
                return Box(settings, files, started, signals, display(sys.stdout)).run()
            finally:
                os.close(started.output)
                # Whatever happened: nothing stays behind.
                processes.end(processes.descendants(), 2.0, processes.reap)
    finally:
        shutil.rmtree(files.folder, ignore_errors=True)
        lock.release()


def api_config(settings: Settings, files: RunFiles, tls: tuple[Path, Path] | None = None) -> dict[str, object]:
    """The api's configuration file, by field name of its `ApiConfig`. Keys are in files of their own.

    `tls` is the certificate and its key.
    """
    options = settings.options
    generation = {name: getattr(options, name) for name, row in rows_of(Options) if row.section == "generation"}
    return {
        "artifact": str(settings.artifact),
        "socket": str(files.engine_socket),
        "state_file": str(settings.state_file),
        "host": options.host,
        "port": options.port,
        "api_key_file": str(files.api_keys) if options.api_key is not None else None,
        "key_store": str(settings.key_store),
        "open_network": options.open_network,
        "allowed_hosts": [options.host, *(options.allowed_hosts or "").replace(",", " ").split()],
        "tls_certificate": None if tls is None else str(tls[0]),
        "tls_key": None if tls is None else str(tls[1]),
        "model_id": settings.public_name,
        "chat_template": None if options.chat_template is None else str(options.chat_template),
        "max_request_mib": options.max_request_mib,
        "pending_timeout_ms": options.pending_timeout_ms,
        "cors": options.cors,
        "log_stats_interval_ms": options.log_stats_interval_ms,
        "request_log_jsonl": None if options.request_log_jsonl is None else str(options.request_log_jsonl.absolute()),
        "response_store_max_records": options.response_store_max_records,
        "response_store_max_mib": options.response_store_max_mib,
        "generation": generation,
        "engine": {
            "device": options.device,
            "kv_dtype": options.kv_dtype,
            "kv_capacity_mode": "auto" if options.kv_capacity == "auto" else "fixed",
            "prefill_chunk": options.prefill_chunk,
            "gdn_state_fp16": options.gdn_state_fp16,
        },
        "log_level": options.log_level,
        "log_json": options.log_json,
        "drain": DRAIN_SECONDS,
    }


def _write_files(settings: Settings, files: RunFiles, launch: Launch, tls: tuple[Path, Path] | None) -> None:
    template = etc_file("supervisord.conf").read_text(encoding="utf-8")
    config = ControllerConfig(
        # The controller has no use for the key.
        values={name: text for name, text in values_as_text(settings.resolved).items() if name != "api_key"},
        sources=dict(settings.resolved.sources),
        run=str(files.folder),
        policy=launch.policy,
        variables=dict(settings.variables),
    )
    key = secrets.token_hex(16)
    write_private(files.supervisor_key, key + "\n")
    write_private(files.supervisor_config, render(template, files, launch.programs(settings, files), key))
    files.controller_config.write_bytes(msgspec.json.encode(config))
    files.api_config.write_bytes(msgspec.json.encode(api_config(settings, files, tls)))
    if settings.options.api_key is not None:
        write_private(files.api_keys, settings.options.api_key + "\n")


def check_request_log(path: Path | None) -> None:
    """Make sure that the request log can be appended to.

    Raises:
        ConfigurationError: it cannot.
    """
    if path is None:
        return
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigurationError(f"--request-log-jsonl: cannot write {path}: {error.strerror}") from error


def check_port(host: str, port: int) -> None:
    """Make sure that the port is free.

    Raises:
        ConfigurationError: it is taken, naming by whom, or the address is not ours.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigurationError(f"--host {host}: {error.strerror}; 127.0.0.1 or 0.0.0.0 works") from error
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                owner = processes.port_owner(port)
                raise ConfigurationError(
                    f"port {port} is taken by {owner}; stop it or choose another with --port"
                ) from error
            raise ConfigurationError(f"cannot listen on {host} port {port}: {error.strerror}") from error


def print_banner(settings: Settings, facts: Mapping[str, str]) -> None:
    """Two columns for a person, one event for a machine."""
    if settings.options.log_json:
        log.info("launch", **{name.lower(): text for name, text in facts.items()})
        return
    width = max(map(len, facts))
    sys.stdout.write("".join(f"{name:<{width}}  {text}\n" for name, text in facts.items()) + "\n")
    sys.stdout.flush()


def _print_settings(settings: Settings) -> None:
    if settings.options.log_json:
        log.info("settings", **{flag: f"{value} ({source})" for flag, value, source in settings.resolved.table()})
        return
    sys.stdout.write("\n".join([*settings_lines(settings), ""]))
    sys.stdout.flush()
