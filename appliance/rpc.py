"""supervisord's XML-RPC, over its Unix socket."""

import http.client
import signal
import xmlrpc.client
from dataclasses import dataclass
from typing import Any, cast

from supervisor.xmlrpc import Faults, SupervisorTransport

from appliance.run_folder import RunFiles

USER = "ninfer"
ANSWER_SECONDS = 10.0
STOPPED_STATES = frozenset({"STOPPED", "EXITED", "FATAL", "UNKNOWN"})


class SupervisorGoneError(Exception):
    """supervisord does not answer on its socket."""


@dataclass(frozen=True)
class ProgramInfo:
    """What supervisord knows of a program. `status` is negative when a signal ended it, and stale while it runs."""

    name: str
    state: str
    pid: int
    status: int
    description: str

    @property
    def runs(self) -> bool:
        return self.state not in STOPPED_STATES and self.pid > 0


class Supervisor:
    """One client. Calls block; use it from one thread at a time."""

    def __init__(self, files: RunFiles) -> None:
        self._socket, self._key = files.supervisor_socket, files.supervisor_key

    def programs(self) -> dict[str, ProgramInfo]:
        """All programs by name.

        Raises:
            SupervisorGoneError: nobody answers.
        """
        return {info["name"]: _info(info) for info in cast("list[dict[str, Any]]", self._call("getAllProcessInfo"))}

    def program(self, name: str) -> ProgramInfo:
        """One program.

        Raises:
            SupervisorGoneError: nobody answers.
        """
        return _info(cast("dict[str, Any]", self._call("getProcessInfo", name)))

    def start(self, name: str) -> ProgramInfo:
        """Start a program that may run already; does not wait until it has settled.

        Raises:
            SupervisorGoneError: nobody answers.
        """
        try:
            self._call("startProcess", name, False)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode not in (Faults.ALREADY_STARTED, Faults.SPAWN_ERROR, Faults.ABNORMAL_TERMINATION):
                raise
        return self.program(name)

    def kill(self, name: str) -> None:
        """SIGKILL; nothing happens when it does not run.

        Raises:
            SupervisorGoneError: nobody answers.
        """
        try:
            self._call("signalProcess", name, str(int(signal.SIGKILL)))
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != Faults.NOT_RUNNING:
                raise

    def shut_down(self) -> None:
        """Stop all programs, then supervisord. Returns before it is done.

        Raises:
            SupervisorGoneError: nobody answers.
        """
        self._call("shutdown")

    def _call(self, method: str, *arguments: object) -> object:
        # A connection for each call: supervisord may restart between two, and a kept one would fail once.
        try:
            key = self._key.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SupervisorGoneError(f"no key of a supervisord beside {self._socket}") from error
        transport = SupervisorTransport(USER, key, f"unix://{self._socket}")
        connect = transport._get_connection

        def connect_bounded() -> http.client.HTTPConnection:
            connection = cast("http.client.HTTPConnection", connect())
            connection.connect()
            connection.sock.settimeout(ANSWER_SECONDS)
            return connection

        transport._get_connection = connect_bounded
        try:
            proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
            return cast("object", getattr(proxy.supervisor, method)(*arguments))
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == Faults.SHUTDOWN_STATE:
                raise SupervisorGoneError("supervisord is shutting down") from fault
            raise
        except (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
            raise SupervisorGoneError(f"supervisord does not answer at {self._socket}: {error}") from error
        finally:
            transport.close()


def _info(raw: dict[str, Any]) -> ProgramInfo:
    return ProgramInfo(
        name=str(raw["name"]),
        state=str(raw["statename"]),
        pid=int(raw["pid"]),
        status=int(raw["exitstatus"]),
        description=str(raw["description"] or raw["spawnerr"]),
    )
