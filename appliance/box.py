"""A running box as `up` sees it: supervisord, everything below it, and what people and systemd are told."""

import contextlib
import http.client
import os
import selectors
import signal
import socket
import ssl
import time
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

import msgspec

from appliance import processes
from appliance.console import Display, PlainDisplay, TerminalDisplay, describe_state, invitation
from appliance.notify import notify
from appliance.processes import Signals
from appliance.rpc import Supervisor, SupervisorGoneError
from appliance.run_folder import RunFiles
from appliance.settings import DRAIN_SECONDS, Settings
from appliance.supervisor import Started
from engine.exits import ExitCode
from engine.log import get_logger
from engine.state_file import State, read_state, write_state

log = get_logger(__name__)

LOOK_SECONDS = 0.1  # between two looks at state.json
CONTROLLER_SECONDS = 2.0  # between two looks at whether there still is a controller
START_SECONDS = 3.0  # in which supervisord starts its first programs
STOP_SECONDS = 2 * DRAIN_SECONDS + 30  # for supervisord to stop everything
EXTEND_MICROSECONDS = 60_000_000  # how long systemd should go on waiting after each sign of life


def wake(path: Path) -> None:
    """Make the supervisord at this socket look around now: it sleeps up to a second before each start or stop."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.settimeout(0.2)
        knock.connect(str(path))


def api_answers(settings: Settings) -> bool:
    """Whether /health says 200."""
    address = urlsplit(settings.url)
    host = address.hostname or ""
    connection = http.client.HTTPConnection(host, address.port, timeout=1.0)
    if address.scheme == "https":
        # We ask ourselves, whatever name the certificate is for.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(host, address.port, timeout=1.0, context=context)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Box:
    """supervisord, and everything below it."""

    def __init__(
        self, settings: Settings, files: RunFiles, started: Started, signals: Signals, display: Display
    ) -> None:
        self._settings, self._files, self._signals, self._display = settings, files, signals, display
        self._supervisor_pid, self._output = started.pid, started.output
        self._supervisor_ended = False
        self._stopping: float | None = None  # since when
        self._asked = 0  # how often somebody asked us to stop
        self._fault: str | None = None
        self._last: State | None = None
        self._stamp: tuple[int, int] | None = None
        self._announced = False

    def run(self) -> int:
        """Watch until supervisord has ended, clean up; returns the exit status."""
        try:
            self._watch()
        finally:
            self._clean_up()
            self._drain()
            self._display.close()
        return self._conclude()

    def _watch(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._signals, selectors.EVENT_READ)
        selector.register(self._output, selectors.EVENT_READ)
        began = time.monotonic()
        next_controller_look = began + CONTROLLER_SECONDS
        with selector:
            while not self._supervisor_ended:
                for key, _ in selector.select(LOOK_SECONDS):
                    if key.fd == self._output:
                        if not self._pass_on():
                            selector.unregister(self._output)
                    else:
                        self._obey(self._signals.read())
                self._reap()
                self._look()
                self._announce()
                now = time.monotonic()
                failed = self._last is not None and self._last.phase == "failed"
                if now - began < START_SECONDS or failed or self._stopping is not None:
                    wake(self._files.supervisor_socket)
                if self._stopping is not None and now - self._stopping > STOP_SECONDS:
                    log.error("stop_took_too_long", seconds=STOP_SECONDS)
                    return
                if self._stopping is None and now >= next_controller_look:
                    next_controller_look = now + CONTROLLER_SECONDS
                    self._look_for_controller()

    def _obey(self, numbers: list[signal.Signals]) -> None:
        for number in numbers:
            if number != signal.SIGCHLD:
                # A hang-up means that the terminal is gone. supervisord would take it as "start again".
                self._stop(number.name)

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
        for pid, status in processes.reap():
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
        with contextlib.suppress(SupervisorGoneError):
            if Supervisor(self._files).program("controller").state == "FATAL":
                self._fault = "the controller does not start"
                self._stop(self._fault)

    def _pass_on(self) -> bool:
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return True
        if data:
            self._display.output(data)
        return bool(data)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._output, 1 << 16):
                self._display.output(data)

    def _clean_up(self) -> None:
        """Leave nothing behind, whatever happened before."""
        # supervisord is among them when its stop took too long. After its proper end there is nothing.
        count = processes.end(processes.descendants(), 2.0, self._reap)
        if count:
            log.warning("leftovers_ended", count=count)
        self._reap()

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


def display(out: TextIO) -> Display:
    """The display that suits `out`."""
    return TerminalDisplay(out) if out.isatty() else PlainDisplay(out)
