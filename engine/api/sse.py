"""Server-sent events over one response (spec/serving.md §3)."""

import asyncio
from typing import Any

import msgspec
from aiohttp import web

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
WRITE_TIMEOUT = 60.0

_encode = msgspec.json.Encoder().encode


class EventStream:
    """One open event stream. Every write is a whole frame.

    Writes raise ConnectionResetError when the client has gone, or reads nothing for `WRITE_TIMEOUT` seconds.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers=HEADERS)

    async def start(self) -> None:
        """Send status 200 and the headers."""
        await self.response.prepare(self._request)

    async def send(self, value: Any, event: str | None = None) -> None:
        """One event with a JSON payload."""
        name = b"" if event is None else f"event: {event}\n".encode()
        await self._write(name + b"data: " + _encode(value) + b"\n\n")

    async def done(self) -> None:
        """The mark that ends OpenAI's chat streams."""
        await self._write(b"data: [DONE]\n\n")

    async def keep_alive(self) -> None:
        """A comment, which clients skip and proxies count as life."""
        await self._write(b": keep-alive\n\n")

    async def _write(self, frame: bytes) -> None:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self.response.write(frame)
        except TimeoutError as error:
            raise ConnectionResetError(f"the client has read nothing for {WRITE_TIMEOUT:g} s") from error
