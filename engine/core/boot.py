"""The start: bind, load, reserve, warm up, serve. Each phase is announced on the socket.

The socket is bound before anything else, so whoever connects learns which phase it is. All memory is taken in `reserve`
and exercised to its full depth in `warm-up`: an engine that says ready can serve its whole context.
"""

import gc
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from engine.constraint.masks import Masks
from engine.constraint.process import Vocabulary
from engine.core.config import EngineConfig
from engine.core.devices import Machine, choose
from engine.core.door import Door
from engine.core.intake import Intake
from engine.core.lane import Request
from engine.core.loop import Arrived, Counters, Drain, Loop, LoopError
from engine.core.scheduler import Scheduler
from engine.core.server import Server, listen
from engine.core.source import ModelSource, OpenSource, open_artifact
from engine.exits import ConfigurationError, DoesNotFitError, ExitCode, NInferError, NoDeviceError
from engine.log import get_logger
from engine.memory import (
    Ledger,
    PagePool,
    RuntimeSizes,
    StatePool,
    largest_context,
    pages_for,
    plan_runtime,
)
from engine.protocol import VERSION, Boot, Hello, Limits, Phase, Sampling
from engine.rounds import Draw, Runtime, Sampler, Span, decode, prefill
from kernels.sampling import PURPOSE_DECODE

LARGEST_CPU_ARTIFACT = 2 * 1024**3
WARM_UP_TOKENS = 4
WARM_UP_CONNECTION = 0  # the server's numbers begin at 1, so nobody hears the warm-up
ANNOUNCE_SECONDS = 0.1
FLUSH_SECONDS = 1.0

log = get_logger(__name__)


def run(config: EngineConfig, open_source: OpenSource = open_artifact) -> ExitCode:
    """Start, serve until SIGTERM or SIGINT, and end. The result is the status of the process.

    Must be called on the main thread: it installs signal handlers.
    """
    _end_on_signal()
    try:
        door = Door()
        listener = listen(config.socket)
        server = Server(listener, on_message=door.message, on_closed=door.closed, on_failure=door.failed)
        door.attach(server.send)
        boot = _Boot(config, server, door)
        try:
            loop = boot.start(open_source)
            _drain_on_signal(loop)
            loop.run()
        except Exception as error:
            server.broadcast(Boot(phase="failed", detail=_detail(error)))
            raise
        finally:
            _ignore_signals()  # the status is settled
            boot.close()
            server.close(FLUSH_SECONDS)
    except NInferError as error:
        log.error("engine_stopped", reason=str(error), status=int(error.exit_code))
        return error.exit_code
    except Exception as error:
        log.error("engine_failed", exc_info=error, status=int(ExitCode.RUNTIME))
        return ExitCode.RUNTIME
    log.info("engine_ended")
    return ExitCode.CLEAN


class _Boot:
    """One start. Holds what the phases share."""

    def __init__(self, config: EngineConfig, server: Server, door: Door) -> None:
        self.config, self.server, self.door = config, server, door
        self._announced = 0.0
        self._masks: Masks | None = None

    def close(self) -> None:
        """End what was started beside this process."""
        if self._masks is not None:
            self._masks.stop()

    def start(self, open_source: OpenSource) -> Loop:
        """Every phase up to ready."""
        with open_source(self.config.artifact) as source:
            self.server.broadcast(Hello(version=VERSION, fingerprint=source.fingerprint, model=source.name))
            self._announce("load", total=source.parameters, unit="parameters")
            self.server.start()
            machine = choose(self.config.device)
            self._check(source, machine)
            with self._memory_named():
                runtime, ledger, sizes = self._load_and_reserve(source, machine)
        if source.special:
            constrained = Vocabulary(tokens=source.vocabulary, special=list(source.special), end=source.special[0])
            self._masks = Masks(constrained, sizes.lanes)
        loop = Loop(
            runtime,
            Scheduler(PagePool(sizes.pages), StatePool(sizes.lanes), max_pending=self.config.max_pending),
            send=self.server.send,
            announce=self._draining,
            disconnect=self.server.disconnect,
            prefill_chunk=self.config.prefill_chunk,
            drain_seconds=self.config.drain_seconds,
            masks=self._masks,
        )
        self._announce("warm-up", detail=f"a chunk at the end of {sizes.max_context} tokens, then a generation")
        with self._memory_named():
            self._warm_up(loop, ledger, sizes, source)
        intake = Intake(
            sizes.max_context, self.config.pending_timeout_ms / 1000, source.vocabulary, self._masks is not None
        )
        self._ready(loop, intake, ledger)
        return loop

    def _check(self, source: ModelSource, machine: Machine) -> None:
        """Refuse what needs no loading to be refused."""
        if machine.device.type == "cpu" and source.payload_bytes > LARGEST_CPU_ARTIFACT:
            raise NoDeviceError(
                f"{self.config.artifact} holds {source.payload_bytes} bytes; the CPU runs artifacts of at most "
                f"{LARGEST_CPU_ARTIFACT}: use a CUDA device, or a smaller model such as nano"
            )
        longest = source.config.max_position_embeddings
        if self.config.max_context > longest:
            raise ConfigurationError(
                f"max_context is {self.config.max_context}; {source.name} was made for at most {longest} tokens"
            )
        weights = source.parameters * machine.dtype.itemsize
        if weights > (free := machine.free()):
            raise DoesNotFitError(
                f"the weights of {source.name} take {weights} bytes as {machine.dtype}; {free} bytes are free on "
                f"{machine.device}: free memory there, or use a smaller model"
            )

    def _load_and_reserve(self, source: ModelSource, machine: Machine) -> tuple[Runtime, Ledger, RuntimeSizes]:
        ledger = Ledger(machine.held)
        ledger.start()
        model = source.load(
            machine.device,
            machine.dtype,
            lambda done: self._announce("load", done=done, total=source.parameters, unit="parameters"),
        )
        gc.collect()
        ledger.close_row("weights", source.parameters * machine.dtype.itemsize)

        state_dtype = torch.float16 if self.config.gdn_state_fp16 else torch.float32
        sizes = RuntimeSizes(
            pages=self.config.pages,
            lanes=self.config.lanes,
            max_context=self.config.max_context,
            prefill_chunk=self.config.prefill_chunk,
            token_count=len(source.vocabulary),
            kv_element=torch.bfloat16.itemsize,
            state_element=state_dtype.itemsize,
            column_element=machine.dtype.itemsize,
        )
        plan = plan_runtime(source.config, sizes)
        self._announce("reserve", total=plan.total, unit="bytes")
        if plan.total > (free := machine.free()):
            fitting = largest_context(source.config, sizes, free)
            remedy = f"a max_context and kv_capacity of {fitting} fit" if fitting else "no context fits"
            raise DoesNotFitError(
                f"runtime reservation requires {plan.total} bytes (KV pages {plan.kv_pages}, state images "
                f"{plan.state_images}, token counts {plan.token_counts}, workspace {plan.workspace}); {free} bytes are "
                f"free on {machine.device} after the weights: {remedy} with {sizes.lanes} lanes"
            )
        pools = model.new_pools(sizes.pages, sizes.lanes, kv_dtype=torch.bfloat16, state_dtype=state_dtype)
        _touch(pools)
        ledger.close_row("pools", plan.kv_pages + plan.state_images)
        sampler = Sampler(sizes.lanes, sizes.token_count, machine.device)
        ledger.close_row("token_counts", plan.token_counts)
        ledger.rows["workspace"] = plan.workspace, 0
        together = machine.device.type != "cpu"
        return Runtime(model, pools, sampler, machine.device, columns_together=together), ledger, sizes

    def _warm_up(self, loop: Loop, ledger: Ledger, sizes: RuntimeSizes, source: ModelSource) -> None:
        """The deepest chunk and the deepest round, then a short generation through the loop itself.

        Raises:
            LoopError: the generation did not end as it should.
        """
        context = sizes.max_context
        chunk = min(sizes.prefill_chunk, context - 1)
        pages = list(range(pages_for(context)))
        loop.runtime.start_lane(0, [])
        if chunk:
            prefill(loop.runtime, Span(0, context - 1 - chunk, pages, [0] * chunk), None)
        last = Span(0, context - 1, pages, [0])
        (deepest,) = decode(loop.runtime, [(last, Draw(0, context, PURPOSE_DECODE, Sampling()))])
        if isinstance(deepest, Exception):
            raise deepest

        request = Request(
            connection=WARM_UP_CONNECTION,
            id=0,
            prompt=[0],
            sampling=Sampling(),
            limit=min(WARM_UP_TOKENS, context - 1),
            limit_finish="length",
            wait_seconds=float("inf"),
        )
        loop.inbox.put(Arrived(request))
        loop.cycle()
        while not loop.scheduler.idle:
            loop.cycle()
        if loop.counters.failed or len(request.generated) != request.limit:
            raise LoopError(f"the warm-up of {source.name} gave {len(request.generated)} of {request.limit} tokens")
        gc.collect()
        ledger.close_row("workspace", ledger.rows["workspace"][0])

    def _ready(self, loop: Loop, intake: Intake, ledger: Ledger) -> None:
        loop.counters = Counters()
        gc.collect()
        gc.freeze()
        for component, (planned, measured) in ledger.rows.items():
            log.info("ledger", component=component, planned=planned, measured=measured)
        config = self.config
        self.door.open(loop, intake)
        self.server.broadcast(
            Limits(
                max_context=config.max_context,
                kv_capacity=config.kv_capacity,
                lanes=config.lanes,
                max_pending=config.max_pending,
                token_count=len(intake.vocabulary),
                ledger=ledger.rows,
            )
        )
        self._announce("ready")
        if self._masks is not None:
            self._masks.start()  # reading a large vocabulary takes it a second or two; nobody waits for that here
        log.info("ready", lanes=config.lanes, max_context=config.max_context, kv_capacity=config.kv_capacity)

    @contextmanager
    def _memory_named(self) -> Iterator[None]:
        """An allocation that fails in spite of the plan is told as one.

        Raises:
            DoesNotFitError: naming the phase and what was asked for.
        """
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise DoesNotFitError(
                    f"runtime reservation requires more memory than there is: phase {self.door.phase} with max_context "
                    f"{self.config.max_context} and kv_capacity {self.config.kv_capacity} failed ({error}); "
                    "use smaller ones, or free memory"
                ) from error
            raise

    def _draining(self, boot: Boot) -> None:
        self.server.refuse_connections()
        self.server.broadcast(boot)

    def _announce(self, phase: Phase, detail: str = "", done: int = 0, total: int = 0, unit: str = "") -> None:
        """Tell every connection; progress within a phase at most ten times a second."""
        now = time.monotonic()
        if phase == self.door.phase and 0 < done < total and now - self._announced < ANNOUNCE_SECONDS:
            return
        if phase != self.door.phase:
            log.info("phase", phase=phase, detail=detail)
        self.door.phase, self._announced = phase, now
        self.server.broadcast(Boot(phase=phase, detail=detail, done=done, total=total, unit=unit))


def _touch(pools: object) -> None:
    """Write every byte of the pools, because the system hands out zeroed memory only when it is touched."""
    for tensor in vars(pools).values():
        if isinstance(tensor, torch.Tensor):
            tensor.zero_()


def _detail(error: Exception) -> str:
    return str(error) if isinstance(error, NInferError | LoopError) else "the engine failed; its log says why"


def _end_on_signal() -> None:
    """Until there is a loop, SIGTERM and SIGINT just end the process, with status 0."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(int(ExitCode.CLEAN))

    assert threading.current_thread() is threading.main_thread()
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


def _ignore_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _drain_on_signal(loop: Loop) -> None:
    def drain(_number: int, _frame: FrameType | None) -> None:
        loop.inbox.put(Drain())

    signal.signal(signal.SIGTERM, drain)
    signal.signal(signal.SIGINT, drain)
