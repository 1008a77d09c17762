"""Between the socket and the loop: refuses while there is no loop, checks requests, and passes the rest on."""

from collections.abc import Callable

from engine.core.intake import Intake
from engine.core.lane import Request
from engine.core.loop import Arrived, Asked, Broken, Closed, Loop
from engine.protocol import (
    AskStatistics,
    Cancel,
    ClientMessage,
    EngineMessage,
    Phase,
    Rejected,
    Statistics,
    Submit,
)


class Door:
    """Its methods are the callbacks of `Server`, and run on the socket thread. `send` is the server's."""

    def __init__(self) -> None:
        self.phase: Phase = "load"
        self._send: Callable[[int, EngineMessage], None] = lambda _connection, _message: None
        self._open: tuple[Loop, Intake] | None = None

    def attach(self, send: Callable[[int, EngineMessage], None]) -> None:
        """Where refusals go."""
        self._send = send

    def open(self, loop: Loop, intake: Intake) -> None:
        """From now on requests reach the loop."""
        self._open = loop, intake

    def message(self, connection: int, message: ClientMessage) -> None:
        """One message of a client."""
        if self._open is None:
            self._refuse(connection, message)
            return
        loop, intake = self._open
        match message:
            case Submit():
                result = intake.read(connection, message)
                if isinstance(result, Request):
                    loop.inbox.put(Arrived(result))
                else:
                    self._send(connection, result)
            case Cancel() | AskStatistics():
                loop.inbox.put(Asked(connection, message))

    def closed(self, connection: int) -> None:
        """A client is gone."""
        if self._open is not None:
            self._open[0].inbox.put(Closed(connection))

    def failed(self, error: BaseException) -> None:
        """The socket thread ended badly."""
        if self._open is not None:
            self._open[0].inbox.put(Broken(f"the socket thread failed: {error!r}"))

    def _refuse(self, connection: int, message: ClientMessage) -> None:
        match message:
            case Submit(id=number):
                text = f"the engine is starting ({self.phase}); wait for the ready message"
                self._send(connection, Rejected(id=number, code="unavailable", message=text))
            case AskStatistics():
                self._send(connection, Statistics())
            case Cancel():
                pass  # there is nothing to cancel
