"""A small hub on loopback whose faults a test can choose."""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from downloader.chunks import format_chunk_list

REVISION = "0123456789abcdef0123456789abcdef01234567"


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
    stall_after: int | None = None  # send so many bytes of the first request, then wait for `release`
    redirect_to: str = ""
    alter: Callable[[int, bytes], bytes] = lambda _, data: data  # (request number, whole body) -> body
    requests: list[dict[str, str]] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def ranges(self) -> list[str]:
        """The Range header of each request, empty where there was none."""
        return [request.get("Range", "") for request in self.requests]


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Run the hub in threads for the duration of a test."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            try:
                self._answer()
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def _answer(self) -> None:
            number = len(hub.requests)
            hub.requests.append(dict(self.headers.items()))
            if hub.redirect_to:
                self.send_response(302)
                self.send_header("Location", hub.redirect_to + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if hub.status is not None:
                self.send_response(hub.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
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
            data = body[begin:end]
            if hub.empty_bodies > 0:
                hub.empty_bodies -= 1
                data = b""
            if hub.surplus:
                self.send_header("Connection", "close")
                self.close_connection = True
            else:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if number == 0 and hub.stall_after is not None:
                self.wfile.write(data[: hub.stall_after])
                self.wfile.flush()
                hub.stalled.set()
                hub.release.wait(30)
                self.close_connection = True
                return
            if hub.break_after:
                self.wfile.write(data[: hub.break_after.pop(0)])
                self.close_connection = True
                return
            self.wfile.write(data + hub.surplus)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
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
endpoint = "http://127.0.0.1:9"

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
