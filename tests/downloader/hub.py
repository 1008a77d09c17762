"""A small hub on loopback whose faults a test can choose."""

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from downloader.chunks import format_chunk_list

REVISION = "0123456789abcdef0123456789abcdef01234567"
PIECE = 16 * 1024


@dataclass
class Hub:
    """What is served, how it misbehaves, and what was asked."""

    body: bytes
    url: str = ""
    ignore_range: bool = False
    wrong_range: bool = False
    surplus: bytes = b""
    empty_bodies: int = 0  # answer this many requests with nothing
    status: int | None = None
    break_after: list[int] = field(default_factory=list)  # drop the connection after so many bytes, one a request
    stall_at: int | None = None  # send so many bytes of all answers together, then wait for `release`
    drip: Callable[[int], float] = lambda _: 0.0  # request number -> seconds before each piece
    redirect_to: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    alter: Callable[[int, bytes], bytes] = lambda _, data: data  # (request number, whole body) -> body
    requests: list[dict[str, str]] = field(default_factory=list)
    sent: int = 0
    most_at_once: int = 0
    stalled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _answering: int = 0

    def ranges(self) -> list[str]:
        """The Range header of each request, empty where there was none."""
        return [request.get("Range", "") for request in self.requests]

    def note(self, headers: dict[str, str]) -> int:
        """Number of a request that just came."""
        with self._lock:
            self.requests.append(headers)
            return len(self.requests) - 1

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count who is answered at the same time."""
        with self._lock:
            self._answering += 1
            self.most_at_once = max(self.most_at_once, self._answering)
        try:
            yield
        finally:
            with self._lock:
                self._answering -= 1

    def allowed(self, size: int) -> int:
        """How many of `size` bytes may go out before the stall."""
        with self._lock:
            size = size if self.stall_at is None else max(0, min(size, self.stall_at - self.sent))
            self.sent += size
            return size

    def breaks(self) -> int | None:
        """Where this answer is to break."""
        with self._lock:
            return self.break_after.pop(0) if self.break_after else None

    def empties(self) -> bool:
        """Whether this answer is to be empty."""
        with self._lock:
            self.empty_bodies -= 1
            return self.empty_bodies >= 0


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Run the hub in threads for the duration of a test."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            try:
                with hub.answering():
                    self._answer()
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def _answer(self) -> None:
            number = hub.note(dict(self.headers.items()))
            if hub.redirect_to or hub.status is not None:
                self.send_response(hub.status or 302)
                self.send_header("Location", hub.redirect_to + self.path)
                self._head(0)
                return
            body = hub.alter(number, hub.body)
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            begin, end = 0, len(body)
            if match and not hub.ignore_range:
                begin, end = int(match[1]), int(match[2]) + 1 if match[2] else len(body)
                self.send_response(206)
                shift = 7 if hub.wrong_range else 0
                self.send_header("Content-Range", f"bytes {begin - shift}-{end - 1 - shift}/{len(body)}")
            else:
                self.send_response(200)
            data = b"" if hub.empties() else body[begin:end] + hub.surplus
            self._head(None if hub.surplus else len(data))
            stop = hub.breaks()
            self._send(number, data[:stop])
            if stop is not None:
                self.close_connection = True

        def _head(self, length: int | None) -> None:
            for name, value in hub.headers.items():
                self.send_header(name, value)
            if length is None:
                self.send_header("Connection", "close")
                self.close_connection = True
            else:
                self.send_header("Content-Length", str(length))
            self.end_headers()

        def _send(self, number: int, data: bytes) -> None:
            for begin in range(0, len(data), PIECE):
                if pause := hub.drip(number):
                    time.sleep(pause)
                piece = data[begin : begin + PIECE]
                allowed = hub.allowed(len(piece))
                self.wfile.write(piece[:allowed])
                if allowed < len(piece):
                    hub.stalled.set()
                    hub.release.wait(30)
                    self.close_connection = True
                    return

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.release.set()
        server.shutdown()
        server.server_close()
        thread.join()


def write_catalog(
    folder: Path,
    body: bytes,
    *,
    endpoint: str = "http://127.0.0.1:9",
    format_version: int = 3,
    sha256: str | None = None,
    chunk_bytes: int = 256 * 1024,
    listed: bool = False,
) -> Path:
    """A catalog that pins `body` as `tiny`, with the digests of its chunks where they are to be `listed`."""
    extra = f"chunk_bytes = {chunk_bytes}\n"
    if listed:
        digests = [
            hashlib.sha256(body[begin : begin + chunk_bytes]).hexdigest() for begin in range(0, len(body), chunk_bytes)
        ]
        text = format_chunk_list(chunk_bytes, digests)
        (folder / "tiny.chunks").write_text(text)
        extra = f'chunks = "tiny.chunks"\nchunks_sha256 = "{hashlib.sha256(text.encode()).hexdigest()}"\n'
    path = folder / "models.toml"
    path.write_text(
        f"""[hub]
endpoint = "{endpoint}"

[models.tiny]
repository = "someone/tiny"
revision = "{REVISION}"
file = "tiny.ninfer"
bytes = {len(body)}
sha256 = "{sha256 or hashlib.sha256(body).hexdigest()}"
format_version = {format_version}
{extra}"""
    )
    return path


def flipped(data: bytes, *positions: int) -> bytes:
    """`data` with one bit changed at each position."""
    copy = bytearray(data)
    for position in positions:
        copy[position] ^= 0x10
    return bytes(copy)
