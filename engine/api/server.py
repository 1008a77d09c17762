"""Runs the application on a listening socket until told to stop."""

import asyncio
import json
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from engine.api.app import create_app
from engine.api.config import ApiConfig
from engine.api.errors import RETRY_AFTER
from engine.api.listen import BACKLOG
from engine.api.model import Load, load_model
from engine.api.service import Service
from engine.log import get_logger
from engine.tls import HANDSHAKE_SECONDS, fingerprint
from engine.version import version

log = get_logger(__name__)

FLUSH = 1.0


async def serve(service: Service, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; then accept nothing more, let running requests end within the configured drain time,
    and end the rest with an error event.

    Raises:
        ExceptionGroup: a part of the service failed; the process should end and be started again.
    """
    config = service.config
    runner = web.AppRunner(
        create_app(service),
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=config.idle_connection,
        shutdown_timeout=FLUSH,
    )
    await runner.setup()
    certificate = service.certificate
    server = await asyncio.get_running_loop().create_server(
        _capped(runner, config.max_connections),
        sock=listener,
        backlog=BACKLOG,
        ssl=None if certificate is None else certificate.context,
        ssl_handshake_timeout=None if certificate is None else HANDSHAKE_SECONDS,
    )
    work = asyncio.create_task(service.run())
    waiting = asyncio.create_task(stop.wait())
    shown = {} if config.tls_certificate is None else {"tls": fingerprint(Path(config.tls_certificate))}
    log.info("listening", host=config.host, port=listener.getsockname()[1], version=version(), **shown)
    try:
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work  # it never ends by itself; raises what went wrong
        service.readiness.draining = True
        server.close()
        log.info("draining", requests=service.admission.active, seconds=config.drain)
        await _idle(service, config.drain)
        service.link.end_streams("the server is shutting down")
        await _idle(service, FLUSH)
    finally:
        server.close()
        waiting.cancel()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        await runner.cleanup()
        service.records.log.close()
        service.close_checker()
        service.pool.shutdown(wait=False, cancel_futures=True)


async def _idle(service: Service, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await service.admission.idle.wait()


def run(config: ApiConfig, listener: socket.socket, load: Load = load_model) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ConfigurationError: a key file or a TLS file cannot be read.
    """

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(Service(config, load), listener, stop)

    asyncio.run(main())


def _capped(runner: web.AppRunner, most: int) -> Callable[[], asyncio.Protocol]:
    """Protocol factory that turns connections away over `most`, so that silent ones cannot use up our descriptors."""
    server = runner.server
    assert server is not None  # set up by the caller

    def make() -> asyncio.Protocol:
        return _TurnedAway() if len(server.connections) >= most else server()

    return make


class _TurnedAway(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        error = {"message": "too many open connections", "type": "server_error", "param": None, "code": None}
        body = json.dumps({"error": error}).encode()
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"Retry-After: {RETRY_AFTER}\r\nX-NInfer-Version: {version()}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        transport.write(head.encode() + body)
        transport.close()
