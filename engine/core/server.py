"""The socket: one thread that only moves bytes between the connections and the loop.

Frames that come in are decoded here and handed to `on_message`; messages for a client are encoded by whoever sends
them and wait here until the client reads. A client that sends garbage, or does not read, loses its connection; nobody
else notices.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.exits import ConfigurationError
from engine.log import get_logger
from engine.protocol import ClientMessage, EngineMessage, FrameReceiver, ProtocolError, decode_client, encode

MAX_CONNECTIONS = 64
MAX_UNREAD_BYTES = 64 * 1024 * 1024  # of one client

log = get_logger(__name__)


def listen(path: Path) -> socket.socket:
    """Bind a Unix socket that only this user may open. A file that nobody answers on is replaced.

    Raises:
        ConfigurationError: another process listens there, or the folder cannot be written.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            pass
        except TimeoutError:
            raise ConfigurationError(f"socket {path}: another engine holds it and is stuck; stop that one") from None
        except OSError as error:
            raise ConfigurationError(f"socket {path}: {error.strerror or error}") from error
        else:
            raise ConfigurationError(f"socket {path}: another engine listens there; stop it or choose another socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    mask = os.umask(0o177)
    try:
        if path.is_socket():
            path.unlink()
        listener.bind(str(path))
        listener.listen(MAX_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"socket {path}: {error.strerror or error}; its folder must be writable") from error
    finally:
        os.umask(mask)
    return listener


@dataclass(eq=False)
class _Connection:
    number: int
    socket: socket.socket
    receiver: FrameReceiver = field(default_factory=FrameReceiver)
    unsent: deque[memoryview] = field(default_factory=deque)
    unsent_bytes: int = 0
    condemned: str = ""  # why it is to be closed
    blocked: bool = False


class Server:
    """Accepts, reads and writes on its own thread. `send` and `broadcast` may be called from any thread.

    `on_message` and `on_closed` are called on the server's thread; `on_failure` if that thread itself ends badly.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        on_message: Callable[[int, ClientMessage], None],
        on_closed: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
        max_unread: int = MAX_UNREAD_BYTES,
    ) -> None:
        self._listener: socket.socket | None = listener
        self._path = Path(listener.getsockname())
        self._on_message, self._on_closed, self._on_failure = on_message, on_closed, on_failure
        self._connections: dict[int, _Connection] = {}
        self._greeting: dict[type[EngineMessage], bytes] = {}
        self._max_unread = max_unread
        self._numbers = 0
        self._lock = threading.Lock()
        self._awake = False
        self._refuse = False
        self._stop_by: float | None = None
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="socket", daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def send(self, connection: int, message: EngineMessage) -> None:
        """Queue a message. A connection that is gone gets nothing."""
        frame = encode(message)
        with self._lock:
            if (found := self._connections.get(connection)) is not None:
                self._queue(found, frame)
        self._wake()

    def broadcast(self, message: EngineMessage) -> None:
        """Queue a message for every connection, and for later ones the last of each type, in order of sending."""
        frame = encode(message)
        with self._lock:
            self._greeting.pop(type(message), None)
            self._greeting[type(message)] = frame
            for connection in self._connections.values():
                self._queue(connection, frame)
        self._wake()

    def disconnect(self, connection: int) -> None:
        """Close a connection that has broken the protocol."""
        with self._lock:
            if (found := self._connections.get(connection)) is not None:
                found.condemned = "it broke the protocol"
        self._wake()

    def refuse_connections(self) -> None:
        """Accept no more, and remove the socket file, so that a successor can have the path."""
        with self._lock:
            self._refuse = True
        self._wake()

    def close(self, flush_seconds: float = 1.0) -> None:
        """Write what is queued, for at most `flush_seconds`, close everything and end the thread."""
        with self._lock:
            self._stop_by = time.monotonic() + flush_seconds
        self._wake()
        if self._thread.ident is None:
            self._close_all()
        else:
            self._thread.join(flush_seconds + 1)

    def _queue(self, connection: _Connection, frame: bytes) -> None:
        if connection.condemned:
            return
        connection.unsent_bytes += len(frame)
        if connection.unsent_bytes > self._max_unread:
            connection.condemned = "it does not read"
        else:
            connection.unsent.append(memoryview(frame))

    def _wake(self) -> None:
        with self._lock:
            if self._awake:
                return
            self._awake = True
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0")

    def _run(self) -> None:
        try:
            while (timeout := self._patience()) is None or timeout > 0:
                for key, events in self._selector.select(timeout):
                    if key.fileobj is self._wake_in:
                        self._woken()
                    elif key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._serve(key.data, events)
        except BaseException as error:
            log.error("socket_thread_failed", exc_info=error)
            self._on_failure(error)
        finally:
            self._close_all()

    def _close_all(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._close_listener()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _patience(self) -> float | None:
        """How long the next wait may be; 0 when it is time to end."""
        with self._lock:
            if self._stop_by is None:
                return None
            if not any(each.unsent for each in self._connections.values()):
                return 0
            return max(0.0, self._stop_by - time.monotonic())

    def _woken(self) -> None:
        # In this order: a wake between the two sends no byte, and what it was for is seen below. The other way round
        # its byte would be swallowed while the flag says that one is under way, and nobody would wake us again.
        with contextlib.suppress(BlockingIOError):
            self._wake_in.recv(64)
        with self._lock:
            self._awake = False
            waiting = [each for each in self._connections.values() if each.unsent or each.condemned]
            refuse = self._refuse
        if refuse:
            self._close_listener()
        for connection in waiting:
            self._write(connection)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
            self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            peer, _ = self._listener.accept()
        except OSError:  # the peer is gone again
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            log.warning("connection_refused", connections=MAX_CONNECTIONS)
            peer.close()
            return
        peer.setblocking(False)
        with self._lock:
            self._numbers += 1
            connection = _Connection(self._numbers, peer)
            for frame in self._greeting.values():
                self._queue(connection, frame)
            self._connections[connection.number] = connection
        self._selector.register(peer, selectors.EVENT_READ, connection)
        self._write(connection)

    def _serve(self, connection: _Connection, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._write(connection)
        if events & selectors.EVENT_READ and connection.number in self._connections:
            self._read(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            frames = connection.receiver.receive(connection.socket)
            if frames is None:
                self._drop(connection)
                return
            for _, descriptors in frames:  # pixels; a request with media is refused
                for descriptor in descriptors:
                    os.close(descriptor)
            for body, _ in frames:
                self._on_message(connection.number, decode_client(body))
        except BlockingIOError:
            return
        except (ProtocolError, OSError) as error:
            log.warning("connection_dropped", connection=connection.number, reason=str(error))
            self._drop(connection)

    def _write(self, connection: _Connection) -> None:
        if connection.number not in self._connections:
            return
        if connection.condemned:
            log.warning("connection_dropped", connection=connection.number, reason=connection.condemned)
            self._drop(connection)
            return
        try:
            while True:
                with self._lock:
                    if not connection.unsent:
                        break
                    frame = connection.unsent[0]
                sent = connection.socket.send(frame)
                with self._lock:
                    connection.unsent_bytes -= sent
                    if sent == len(frame):
                        connection.unsent.popleft()
                    else:
                        connection.unsent[0] = frame[sent:]
            blocked = False
        except BlockingIOError:
            blocked = True
        except OSError:
            self._drop(connection)
            return
        if blocked != connection.blocked:
            connection.blocked = blocked
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if blocked else 0)
            self._selector.modify(connection.socket, events, connection)

    def _drop(self, connection: _Connection) -> None:
        with self._lock:
            if self._connections.pop(connection.number, None) is None:
                return
        self._selector.unregister(connection.socket)
        connection.receiver.close()
        connection.socket.close()
        self._on_closed(connection.number)
