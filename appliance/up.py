"""`ninfer-appliance up`: PID 1 of a container, ExecStart of a unit, or a foreground command.

It starts supervisord as its child, in a session of its own so that a terminal's Ctrl-C reaches `up` alone, reaps what
is orphaned, tells systemd how the start goes, and ends with the status that the controller left in `state.json`.
"""

import contextlib
import errno
import http.client
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

import msgspec

from appliance import processes
from appliance.boot import Policy
from appliance.console import Display, PlainDisplay, TerminalDisplay, describe_state, invitation
from appliance.controller_config import ControllerConfig
from appliance.notify import notify
from appliance.owner import Lock
from appliance.run_folder import RunFiles, run_folder
from appliance.settings import DRAIN_SECONDS, Settings, etc_file, settings_lines, values_as_text
from appliance.supervisor import Programs, default_programs, render, write_private
from engine.exits import ConfigurationError, ExitCode
from engine.log import configure, get_logger
from engine.options import Options, rows_of
from engine.state_file import State, read_state, write_state

log = get_logger(__name__)

LOOK_SECONDS = 0.1  # between two looks at state.json
CONTROLLER_SECONDS = 2.0  # between two looks at whether there still is a controller
STOP_SECONDS = 2 * DRAIN_SECONDS + 30  # for supervisord to stop everything
SWEEP_SECONDS = 5.0  # for leftovers of a killed box to end by themselves
EXTEND_MICROSECONDS = 60_000_000  # how long systemd should go on waiting after each sign of life
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


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
        check_port(options.host, options.port)
        _write_files(settings, files, launch)
        write_state(settings.state_file, State(phase="fetch", since=time.time(), url=settings.url))
        return Box(settings, files, _display(sys.stdout)).run()
    finally:
        lock.release()


def api_config(settings: Settings, files: RunFiles) -> dict[str, object]:
    """The api's configuration file, by field name of its `ApiConfig`. Keys are in a file of their own."""
    options = settings.options
    generation = {name: getattr(options, name) for name, row in rows_of(Options) if row.section == "generation"}
    return {
        "artifact": str(settings.artifact),
        "socket": str(files.engine_socket),
        "state_file": str(settings.state_file),
        "host": options.host,
        "port": options.port,
        "api_key_file": str(files.api_keys) if options.api_key is not None else None,
        "model_id": settings.public_name,
        "chat_template": None if options.chat_template is None else str(options.chat_template),
        "max_request_mib": options.max_request_mib,
        "pending_timeout_ms": options.pending_timeout_ms,
        "generation": generation,
        "log_level": options.log_level,
        "log_json": options.log_json,
        "drain": DRAIN_SECONDS,
    }


def _write_files(settings: Settings, files: RunFiles, launch: Launch) -> None:
    template = etc_file("supervisord.conf").read_text(encoding="utf-8")
    config = ControllerConfig(
        # The controller has no use for the key.
        values={name: text for name, text in values_as_text(settings.resolved).items() if name != "api_key"},
        sources=dict(settings.resolved.sources),
        run=str(files.folder),
        policy=launch.policy,
    )
    key = secrets.token_hex(16)
    write_private(files.supervisor_key, key + "\n")
    write_private(files.supervisor_config, render(template, files, launch.programs(settings, files), key))
    files.controller_config.write_bytes(msgspec.json.encode(config))
    files.api_config.write_bytes(msgspec.json.encode(api_config(settings, files)))
    if settings.options.api_key is not None:
        write_private(files.api_keys, settings.options.api_key + "\n")


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


def wake(path: Path) -> None:
    """Make the supervisord at this socket look around now: it sleeps up to a second between steps of its stop."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.settimeout(0.2)
        knock.connect(str(path))


def api_answers(settings: Settings) -> bool:
    """Whether /health says 200."""
    address = urlsplit(settings.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Box:
    """supervisord, and everything below it."""

    def __init__(self, settings: Settings, files: RunFiles, display: Display) -> None:
        self._settings, self._files, self._display = settings, files, display
        self._supervisor_pid = 0
        self._supervisor_ended = False
        self._stopping: float | None = None  # since when
        self._asked = 0  # how often somebody asked us to stop
        self._fault: str | None = None
        self._last: State | None = None
        self._stamp: tuple[int, int] | None = None
        self._announced = False

    def run(self) -> int:
        """Start, watch, clean up; returns the exit status."""
        processes.become_subreaper()
        signals, signaller = socket.socketpair()
        for end in (signals, signaller):
            end.setblocking(False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        previous = signal.set_wakeup_fd(signaller.fileno(), warn_on_full_buffer=False)
        output, child_output = os.pipe()
        os.set_blocking(output, False)
        try:
            self._start(child_output)
            os.close(child_output)
            self._watch(signals, output)
        finally:
            self._clean_up()
            self._drain(output)
            self._display.close()
            signal.set_wakeup_fd(previous)
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            os.close(output)
            signals.close()
            signaller.close()
        return self._conclude()

    def _start(self, output: int) -> None:
        command = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(self._files.supervisor_config)]
        environment = {**os.environ, processes.RUN_VARIABLE: str(self._files.folder)}
        environment.pop("NOTIFY_SOCKET", None)  # the start is ours to announce
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
            preexec_fn=processes.die_with_parent(os.getpid()),  # noqa: PLW1509  (this process has one thread)
        )
        self._supervisor_pid = child.pid
        child.returncode = 0  # reaped with all others in `_reap`

    def _watch(self, signals: socket.socket, output: int) -> None:
        selector = selectors.DefaultSelector()
        selector.register(signals, selectors.EVENT_READ)
        selector.register(output, selectors.EVENT_READ)
        next_controller_look = time.monotonic() + CONTROLLER_SECONDS
        with selector:
            while not self._supervisor_ended:
                for key, _ in selector.select(LOOK_SECONDS):
                    if key.fd == output:
                        if not self._pass_on(output):
                            selector.unregister(output)
                    else:
                        self._signals(signals.recv(4096))
                self._reap()
                self._look()
                self._announce()
                if self._stopping is not None or (self._last is not None and self._last.phase == "failed"):
                    wake(self._files.supervisor_socket)
                now = time.monotonic()
                if self._stopping is not None and now - self._stopping > STOP_SECONDS:
                    log.error("stop_took_too_long", seconds=STOP_SECONDS)
                    return
                if self._stopping is None and now >= next_controller_look:
                    next_controller_look = now + CONTROLLER_SECONDS
                    self._look_for_controller()

    def _signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number != signal.SIGCHLD:
                # A hang-up means that the terminal is gone. supervisord would take it as "start again".
                self._stop(signal.Signals(number).name)

    def _stop(self, reason: str) -> None:
        self._asked += 1
        if self._stopping is None:
            self._stopping = time.monotonic()
            log.info("stopping", reason=reason)
            notify("STOPPING=1", f"STATUS=stopping ({reason})")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._supervisor_pid, signal.SIGTERM)
        elif self._asked > 1:
            log.warning("stopping_now", reason=reason)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._supervisor_pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._supervisor_ended = True
                return
            if pid == 0:
                return
            if pid == self._supervisor_pid:
                self._supervisor_ended = True
                if status != 0 and self._stopping is None:
                    self._fault = f"supervisord ended ({os.waitstatus_to_exitcode(status)})"

    def _look(self) -> None:
        try:
            status = self._settings.state_file.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._stamp:
                return
            state = read_state(self._settings.state_file)
        except (OSError, msgspec.MsgspecError):
            return
        self._stamp = stamp
        if state is None or state == self._last:
            return
        self._last = state
        self._display.show(state)
        if self._stopping is None:
            notify(f"STATUS={describe_state(state)}", f"EXTEND_TIMEOUT_USEC={EXTEND_MICROSECONDS}")

    def _announce(self) -> None:
        """Say once that the box is ready: the engine is proven, and the api answers for it."""
        if self._announced or self._stopping is not None or self._last is None or self._last.phase != "ready":
            return
        if not api_answers(self._settings):
            return
        self._announced = True
        notify("READY=1", f"STATUS=ready at {self._settings.url}")
        for line in invitation(self._settings):
            self._display.say(line)

    def _look_for_controller(self) -> None:
        """supervisord lives on when the controller is FATAL; nobody else would notice."""
        from appliance.rpc import Supervisor, SupervisorGoneError  # noqa: PLC0415  (not before the api starts)

        with contextlib.suppress(SupervisorGoneError):
            if Supervisor(self._files).program("controller").state == "FATAL":
                self._fault = "the controller does not start"
                self._stop(self._fault)

    def _pass_on(self, output: int) -> bool:
        try:
            data = os.read(output, 1 << 16)
        except BlockingIOError:
            return True
        if data:
            self._display.output(data)
        return bool(data)

    def _drain(self, output: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(output, 1 << 16):
                self._display.output(data)

    def _clean_up(self) -> None:
        """Leave nothing behind, whatever happened before."""
        # supervisord is among them when its stop took too long. After its proper end there is nothing.
        count = processes.end(processes.descendants(), 2.0, self._reap)
        if count:
            log.warning("leftovers_ended", count=count)
        self._reap()
        files = self._files
        for file in (files.supervisor_socket, files.supervisor_key, files.engine_socket, files.api_keys):
            file.unlink(missing_ok=True)

    def _conclude(self) -> int:
        self._look()
        state = self._last or State(phase="failed")
        if state.exit_code is None:
            fault = self._fault or (None if self._stopping is not None else "supervisord ended")
            code = ExitCode.CLEAN if fault is None else ExitCode.RUNTIME
            state = msgspec.structs.replace(
                state,
                phase="draining" if fault is None else "failed",
                detail="stopped" if fault is None else fault,
                exit_code=int(code),
                engine_pid=None,
            )
            with contextlib.suppress(OSError):
                write_state(self._settings.state_file, state)
        if state.exit_code:
            for line in state.log:
                log.error("last_words", line=line)
            log.error("box_failed", code=state.exit_code, reason=state.detail)
            notify(f"STATUS=failed: {state.detail}")
        else:
            log.info("stopped")
        return state.exit_code or 0


def _display(out: TextIO) -> Display:
    return TerminalDisplay(out) if out.isatty() else PlainDisplay(out)


def _print_settings(settings: Settings) -> None:
    if settings.options.log_json:
        log.info("settings", **{flag: f"{value} ({source})" for flag, value, source in settings.resolved.table()})
        return
    sys.stdout.write("\n".join([*settings_lines(settings), ""]))
    sys.stdout.flush()
