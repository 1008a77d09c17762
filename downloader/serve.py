"""`download-model serve`: lend a folder of artifacts to other boxes on this network, read-only.

Only finished artifacts are given out, by their plain names; whoever fetches checks them against its own catalog, so
this box need not be trusted.
"""

import re
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO
from urllib.parse import unquote

import structlog

log = structlog.get_logger(__name__)
PORT = 8090
IDLE_SECONDS = 60.0  # a peer that takes nothing for so long is let go
MOST_CONNECTIONS = 64
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_SUFFIX = ".ninfer"


class FolderServer(ThreadingHTTPServer):
    """Serves `folder` on `address`; `serve_forever` runs it. Port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, folder: Path, address: tuple[str, int]) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be used.
        """
        self.folder = folder
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, _Handler)

    def artifacts(self) -> list[Path]:
        """What is given out."""
        return sorted(path for path in self.folder.glob(f"*{_SUFFIX}") if path.is_file())

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Turn away who comes when all slots are taken; it will try again."""
        if self.slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """One connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A peer that goes away is no fault."""
        log.debug("peer_left", peer=str(client_address))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "ninfer-appliance"
    sys_version = ""
    timeout = IDLE_SECONDS
    server: FolderServer

    def do_GET(self) -> None:
        """The file, or the range of it that is asked for."""
        self._answer(send=True)

    def do_HEAD(self) -> None:
        """Size alone."""
        self._answer(send=False)

    def _answer(self, *, send: bool) -> None:
        name = unquote(self.path.removeprefix("/"))
        # Among the names that are there: nothing that a client sends is ever made into a path.
        path = next((path for path in self.server.artifacts() if path.name == name), None)
        try:
            file = path.open("rb") if path is not None else None
        except OSError:
            file = None
        if file is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        with file:
            total = file.seek(0, 2)
            span = _span(self.headers.get("Range"), total)
            if span is None:
                self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, f"bytes */{total}")
                return
            begin, end = span
            ranged = "Range" in self.headers
            self.send_response(HTTPStatus.PARTIAL_CONTENT if ranged else HTTPStatus.OK)
            if ranged:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{total}")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            if send:
                self._send(file, begin, end)

    def _send(self, file: IO[bytes], begin: int, end: int) -> None:
        file.seek(begin)
        try:
            if end - begin:
                self.connection.sendfile(file, begin, end - begin)
        except OSError:
            self.close_connection = True

    def _refuse(self, status: HTTPStatus, content_range: str = "") -> None:
        self.send_response(status)
        if content_range:
            self.send_header("Content-Range", content_range)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        log.debug("request", peer=self.client_address[0], line=format % args)


def _span(header: str | None, total: int) -> tuple[int, int] | None:
    """Byte range [begin, end) that is asked for; None where it cannot be given."""
    if header is None:
        return 0, total
    match = _RANGE.fullmatch(header)
    if match is None:
        return None
    begin, end = int(match[1]), min(int(match[2]) + 1 if match[2] else total, total)
    return (begin, end) if begin < end else None
