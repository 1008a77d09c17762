"""What every handler needs, put together once."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from engine.api.auth import Keys
from engine.api.config import ApiConfig, read_keys
from engine.api.constraints import refusal
from engine.api.engine_link import EngineLink
from engine.api.errors import overloaded, unavailable
from engine.api.hosts import Hosts
from engine.api.metrics import Metrics
from engine.api.model import Load, ModelLoader, ServedModel, load_model
from engine.api.readiness import Readiness
from engine.api.records import Records
from engine.api.reporter import Reporter
from engine.api.request_log import RequestLog
from engine.api.responses.store import ResponseStore
from engine.api.totals import Totals
from engine.constraint.checker import Checker
from engine.constraint.constraint import Constraint
from engine.constraint.errors import ConstraintError
from engine.constraint.process import Vocabulary
from engine.log import get_logger
from engine.protocol import Limits, Statistics
from engine.tls import Certificate

log = get_logger(__name__)

T = TypeVar("T")
POLL = 0.05


class Admission:
    """Requests between the start of their preparation and the end of their answer; lanes + pending at most."""

    def __init__(self) -> None:
        self.active = 0
        self.idle = asyncio.Event()
        self.idle.set()

    @contextmanager
    def slot(self, limits: Limits) -> Iterator[None]:
        """Hold one place.

        Raises:
            ApiError: `server_overloaded`, there is none.
        """
        capacity = limits.lanes + limits.max_pending
        if self.active >= capacity:
            raise overloaded(capacity)
        self.active += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.active -= 1
            if not self.active:
                self.idle.set()


class Service:
    """The parts of one `api` process. `run` keeps them going."""

    def __init__(self, config: ApiConfig, load: Load = load_model) -> None:
        self.config = config
        store = None if config.key_store is None else Path(config.key_store)
        self.keys = Keys(read_keys(config), store=store)
        self.hosts = Hosts(config.allowed_hosts)
        self.certificate: Certificate | None = None
        if config.tls_certificate is not None and config.tls_key is not None:
            self.certificate = Certificate(Path(config.tls_certificate), Path(config.tls_key))
        log_path = None if config.request_log_jsonl is None else Path(config.request_log_jsonl)
        self.records = Records(RequestLog(log_path, not_at=Path(config.artifact)))
        self.totals = Totals()
        self._requests = itertools.count(1)
        self.pool = ThreadPoolExecutor(config.threads, thread_name_prefix="prepare")
        self.link = EngineLink(
            Path(config.socket), heartbeat=config.heartbeat, stall=config.stall, on_statistics=self._count,
            on_round=self.totals.decoded,
        )  # fmt: skip
        template = None if config.chat_template is None else Path(config.chat_template)
        self.loader = ModelLoader(Path(config.artifact), template, load, self.pool, self._served)
        state_file = None if config.state_file is None else Path(config.state_file)
        self.readiness = Readiness(self.link, self.loader, state_file)
        self.metrics = Metrics(self.link, lambda: self.readiness.model is not None)
        self.admission = Admission()
        self._checker: tuple[ServedModel, Checker] | None = None
        self.responses = ResponseStore(config.response_store_max_records, config.response_store_max_mib * 2**20)
        self.ready = asyncio.Event()  # set once, when requests are first served

    @property
    def serving(self) -> tuple[ServedModel, Limits]:
        """The model and the limits in force.

        Raises:
            ApiError: not ready any more.
        """
        model, limits = self.readiness.model, self.readiness.limits
        if model is None or limits is None:
            raise unavailable("the engine has gone away; try again shortly")
        return model, limits

    def public_id(self, model: ServedModel) -> str:
        """The name that clients must send."""
        return self.config.model_id or model.name

    def next_request(self) -> int:
        """The number of a request whose preparation begins."""
        return next(self._requests)

    async def offload(self, work: Callable[[], T]) -> T:
        """Run `work` in one of the worker threads."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def compiled(self, model: ServedModel, constraint: Constraint | None) -> None:
        """Return once the constraint is known to compile.

        Raises:
            ApiError: it does not.
        """
        if constraint is None:
            return
        if self._checker is None or self._checker[0] is not model:
            self.close_checker()
            frontend = model.frontend
            vocabulary = Vocabulary(
                tokens=list(frontend.vocabulary), special=list(frontend.special_ids), end=frontend.stop_ids[0]
            )
            self._checker = model, Checker(vocabulary)
        try:
            await self._checker[1].check(constraint)
        except ConstraintError as error:
            raise refusal(error, constraint.field) from error

    def close_checker(self) -> None:
        """End the processes that compile constraints."""
        if self._checker is not None:
            self._checker[1].close()
            self._checker = None

    async def run(self) -> None:
        """Follow the engine, the state file and the artifact, until cancelled."""
        reporter = Reporter(self.totals, self.link, self.records.log)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.link.run())
            group.create_task(self.loader.run())
            group.create_task(self.readiness.run())
            group.create_task(self._announce())
            if self.certificate is not None:
                group.create_task(self.certificate.follow())
            group.create_task(reporter.run(self.config.log_stats_interval_ms / 1000))

    async def _announce(self) -> None:
        while True:
            model, limits = self.readiness.model, self.readiness.limits
            if model is not None and limits is not None:
                break
            await asyncio.sleep(POLL)
        self.metrics.serving(self.public_id(model), limits, lambda: self.admission.active)
        self.records.serving(self.config, model, self.public_id(model), limits, keys=self.keys.configured)
        self.totals.ready = time.monotonic()
        self.readiness.open = True
        self.ready.set()
        log.info("serving", model=self.public_id(model), max_context=limits.max_context, lanes=limits.lanes)

    def _served(self) -> str:
        return "" if self.link.hello is None else self.link.hello.fingerprint

    def _count(self, before: Statistics, now: Statistics) -> None:
        self.metrics.statistics(before, now)
        self.totals.statistics(before, now)


SERVICE = web.AppKey("service", Service)
