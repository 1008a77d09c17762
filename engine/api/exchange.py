"""One generation request from the start of its preparation to the end of its answer, in any protocol."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from aiohttp import web

from engine.api.errors import ApiError, internal, queue_timeout
from engine.api.generation import Account, Ask, Event, Prepared, generate, prepare
from engine.api.metrics import Outcome
from engine.api.service import SERVICE, Service
from engine.log import get_logger

log = get_logger(__name__)

Protocol = Literal["openai_chat_completions", "openai_responses", "anthropic_messages"]

T = TypeVar("T")


@dataclass
class Exchange:
    """What is known about one request while it is served.

    Attributes:
        number: counts the requests of this process.
        model: the label that the request sent.
        id: the id of the answer, such as `msg_…`.
        key: the name of the key that asked; None for an open server.
        outcome: how it ends if nothing else happens.
    """

    service: Service
    account: Account
    number: int
    protocol: Protocol
    http_id: str
    id: str
    model: str
    stream: bool
    cache_salt: bytes = b""
    key: str | None = None
    ask: Ask | None = None
    prepared: Prepared | None = None
    outcome: Outcome = "failed"
    error: ApiError | None = None

    async def prepare(self, make: Callable[[], Ask]) -> Prepared:
        """Turn the request into a prompt, in a worker thread and before the deadline.

        Raises:
            ApiError: it cannot be made, does not fit, or takes too long.
        """
        service = self.service
        model, limits = service.serving

        def work() -> Prepared:
            self.ask = make()
            return prepare(self.ask, model, limits, service.config.generation)

        try:
            prepared = await in_time(service, self.account.arrived, work)
            await service.compiled(model, prepared.constraint)
            self.prepared = prepared
        except ApiError:
            self.outcome = "rejected"
            raise
        self.account.prompt_tokens = self.prepared.prompt_tokens
        self.account.prepared = time.monotonic()
        service.records.started(self)
        return self.prepared

    def events(self) -> AsyncGenerator[Event, None]:
        """The answer as it comes; see `generate`."""
        assert self.prepared is not None  # by prepare
        config = self.service.config
        return generate(
            self.service.link,
            self.prepared,
            self.account,
            pending_timeout_ms=config.pending_timeout_ms,
            silence=config.keep_alive,
            cache_salt=self.cache_salt,
        )

    def failed(self, error: Exception) -> ApiError:
        """Note what ended a stream after its headers; returns what the client is told."""
        if not isinstance(error, ApiError):
            log.exception("stream_failed", exc_info=error)
            error = internal()
        self.outcome, self.error = "failed", error
        return error


async def in_time(service: Service, arrived: float, work: Callable[[], T]) -> T:
    """Run `work` in a worker thread; what arrived at `arrived` has until the pending deadline for it.

    Raises:
        ApiError: `request_queue_timeout`.
    """
    timeout = service.config.pending_timeout_ms
    left = arrived + timeout / 1000 - time.monotonic()
    try:
        async with asyncio.timeout(left):
            return await service.offload(work)
    except TimeoutError as error:
        raise queue_timeout(timeout) from error


@asynccontextmanager
async def exchange(
    request: web.Request, protocol: Protocol, *, id: str, model: str, stream: bool, arrived: float
) -> AsyncIterator[Exchange]:
    """Hold a place for one request, and account for how it ends.

    A normal end is `completed` unless the outcome says otherwise by then.

    Raises:
        ApiError: `server_overloaded`.
    """
    service = request.app[SERVICE]
    _, limits = service.serving
    with service.admission.slot(limits):
        account = Account(arrived=arrived, on_first_token=service.metrics.first_token)
        running = Exchange(
            service, account, service.next_request(), protocol, request["identity"][1], id, model, stream,
            cache_salt=request.get("cache_salt", b""), key=request.get("key"),
        )  # fmt: skip
        try:
            yield running
            if running.error is None:
                running.outcome = "completed"
        except (asyncio.CancelledError, ConnectionResetError):
            running.outcome = "cancelled"
            raise
        except ApiError as error:
            running.error = error
            raise
        except Exception:
            running.error = internal()
            raise
        finally:
            _close(running)


def _close(running: Exchange) -> None:
    service, account = running.service, running.account
    account.ended = time.monotonic()
    duration = account.ended - account.arrived
    service.metrics.ended(running.outcome, account, duration, running.key)
    service.totals.ended(account)
    service.totals.remember(account, running.protocol, running.outcome)
    service.records.ended(running)
    log.info(
        "request_done",
        outcome=running.outcome,
        finish=account.finish,
        prompt_tokens=account.prompt_tokens,
        completion_tokens=account.generated,
        seconds=round(duration, 3),
    )
