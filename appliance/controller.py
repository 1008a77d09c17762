"""The `controller` program: carries out what the boot state machine decides.

It is a supervisord event listener. It starts `fetch` and `engine` over supervisord's socket, watches the engine on a
connection of its own, and writes `state.json`.
"""

import asyncio
import collections
import contextlib
import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from appliance import boot, proof
from appliance.controller_config import ControllerConfig
from appliance.engine_start import PlanLike, engine_config, proof_key
from appliance.events import Lines, ProcessLog, ProcessState, Stopping, SupervisorEvent, listen
from appliance.policy import Policy
from appliance.rpc import ProgramInfo, Supervisor, SupervisorGoneError
from appliance.run_folder import RunFiles
from appliance.settings import Settings
from engine.exits import ExitCode, NInferError
from engine.log import configure, get_logger
from engine.protocol import (
    AskStatistics,
    Boot,
    Cancel,
    EngineConnection,
    EngineMessage,
    Limits,
    ProtocolError,
    Rejected,
    Statistics,
    Tokens,
)
from engine.state_file import Finding, State, read_state, write_state

log = get_logger(__name__)

KEPT_LINES = 50
PROGRESS = re.compile(r"progress what=(\w+) done=(\d+) total=(\d+)")
PROGRESS_SECONDS = 0.2  # between two writes of state.json that differ only in progress
# supervisord wakes once a second by itself and tells of an exit one wake-up later; a look at it wakes it.
POLL_SECONDS = 5.0  # while the engine is connected: its end shows at once
QUICK_POLL_SECONDS = 0.5  # while a program runs that we have no connection to
FIRST_POLL_SECONDS = 0.2  # until supervisord delivers events, which it does after a listener's first second


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the world provides. `probe` and `plan` run in a thread and raise `NInferError` when there is no way.

    `probe` gets a function that reports waits, and the process ids of our engines that have ended.
    """

    probe: Callable[[Settings, Callable[[str], None], Collection[int]], Any]
    plan: Callable[[Settings, Any], PlanLike]
    examine: Callable[[Settings], Sequence[Finding]] = lambda settings: ()  # the doctor; in a thread too
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time


@dataclass
class Watched:
    """The engine process under watch."""

    pid: int
    connection: EngineConnection | None = None
    limits: asyncio.Future[Limits] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    answers: asyncio.Queue[EngineMessage | None] = field(default_factory=asyncio.Queue)
    statistics: Statistics = field(default_factory=Statistics)
    requests: Iterator[int] = field(default_factory=lambda: itertools.count(1))


class Controller:
    """One boot, from power-on to the end."""

    def __init__(self, settings: Settings, files: RunFiles, policy: Policy, surroundings: Surroundings) -> None:
        self._settings, self._files, self._policy, self._world = settings, files, policy, surroundings
        self._supervisor = Supervisor(files)
        self._rpc_lock = asyncio.Lock()
        self._state = boot.BootState(phase="fetch", phase_began=surroundings.clock())
        self._events: asyncio.Queue[boot.Event] = asyncio.Queue()
        self._supervisor_events: asyncio.Queue[ProcessState] = asyncio.Queue()
        self._lines: dict[str, Lines] = collections.defaultdict(Lines)
        self._logs: dict[str, collections.deque[str]] = collections.defaultdict(
            lambda: collections.deque(maxlen=KEPT_LINES)
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._engine: Watched | None = None
        self._ended_engines: set[int] = set()
        self._machine: Any = None
        self._plan: PlanLike | None = None
        self._findings: tuple[Finding, ...] = ()
        self._examining = False
        self._published: State | None = None
        self._published_at = 0.0
        self._live = False  # supervisord has delivered an event
        self._poll_now = asyncio.Event()
        self._end = asyncio.Event()
        self._defect: BaseException | None = None

    async def run(self, source: asyncio.StreamReader, write: Callable[[bytes], object]) -> None:
        """Run until supervisord stops us (SIGTERM, or the end of `source`).

        A defect of ours is raised; supervisord then starts a new controller, which takes the engine over.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end.set)
        self._spawn(self._listen(source, write))
        self._spawn(self._follow_programs())
        self._spawn(self._poll_programs())
        self._spawn(self._main())
        await self._end.wait()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._defect is not None:
            raise self._defect
        if not self._state.stopping:
            self._step(boot.StopRequested())
        self._publish()

    async def _main(self) -> None:
        await self._begin()
        while True:
            deadline = boot.next_deadline(self._state, self._policy)
            wait = None if deadline is None else max(0.0, deadline - self._world.clock())
            if self._published is not None and self._snapshot() != self._published:
                wait = PROGRESS_SECONDS if wait is None else min(wait, PROGRESS_SECONDS)
            event: boot.Event = boot.Tick()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    event = await self._events.get()
            await self._handle(event)

    async def _begin(self) -> None:
        """Start the boot, or take over an engine that outlived an earlier controller."""
        while True:
            try:
                engine = (await self._programs())["engine"]
                break
            except SupervisorGoneError:
                await asyncio.sleep(0.05)
        if engine.runs:
            before = _last_state(self._settings.state_file)
            log.warning("engine_taken_over", pid=engine.pid)
            self._watch(engine.pid)
            await self._handle(
                boot.EngineFound(engine.pid, {} if before is None else before.plan, before.restarts if before else 0)
            )
        elif await self._may_fetch():
            await self._handle(boot.Begin(self._settings.fetch))

    async def _may_fetch(self) -> bool:
        """Refuse what this machine cannot run before gigabytes are fetched for it."""
        if not self._settings.fetch or self._settings.artifact.exists():
            return True
        try:
            machine = await asyncio.to_thread(self._world.probe, self._settings, self._waiting(), ())
            await asyncio.to_thread(self._world.plan, self._settings, machine)
        except NInferError as error:
            await self._handle(boot.Refused(int(error.exit_code), str(error)))
            return False
        except Exception:
            log.exception("early_plan_failed")  # the plan after the fetch decides
        return True

    async def _handle(self, event: boot.Event) -> None:
        pending: list[boot.Event] = [event]
        while pending:
            for action in self._step(pending.pop(0)):
                pending += await self._perform(action)
            self._publish()

    def _step(self, event: boot.Event) -> tuple[boot.Action, ...]:
        before = self._state
        self._state, actions = boot.step(before, event, self._world.clock(), self._policy)
        if self._state.phase != before.phase:
            log.info("phase", phase=self._state.phase, detail=self._state.detail)
        elif isinstance(event, boot.Waiting) and self._state.detail != before.detail:
            log.info("waiting", phase=self._state.phase, detail=self._state.detail)
        # When the machine has settled, and whenever something went wrong.
        if isinstance(event, boot.Probed | boot.Refused | boot.EngineExited) or (
            isinstance(event, boot.FetchExited) and event.status != 0
        ):
            self._see_the_doctor()
        return actions

    def _see_the_doctor(self) -> None:
        if not self._examining:
            self._examining = True
            self._spawn(self._examine())

    async def _examine(self) -> None:
        try:
            findings = tuple(await asyncio.to_thread(self._world.examine, self._settings))
        except Exception:
            log.exception("doctor_failed")  # its findings are good to have, not needed
            return
        finally:
            self._examining = False
        for finding in findings:
            if finding in self._findings:
                continue
            if finding.level == "ok":
                log.info("finding", check=finding.check, level=finding.level, sentence=finding.sentence)
            else:
                log.warning(
                    "finding",
                    check=finding.check,
                    level=finding.level,
                    sentence=finding.sentence,
                    command=finding.command,
                )
        self._findings = findings
        self._publish()

    async def _perform(self, action: boot.Action) -> list[boot.Event]:
        """Carry out one action; returns what is known at once. Slow ones report later."""
        if isinstance(action, boot.StartFetch):
            return await self._start("fetch")
        if isinstance(action, boot.StartApi):
            return await self._start("api")
        if isinstance(action, boot.Probe):
            self._spawn(self._probe())
        elif isinstance(action, boot.Plan):
            self._spawn(self._make_plan())
        elif isinstance(action, boot.StartEngine):
            return await self._start_engine()
        elif isinstance(action, boot.Prove):
            self._spawn(self._prove(action.pid))
        elif isinstance(action, boot.KillEngine):
            log.error("engine_killed", reason=action.reason)
            await self._call(self._supervisor.kill, "engine")
        else:
            await self._call(self._supervisor.shut_down)
        return []

    # Programs

    async def _start(self, name: Literal["api", "fetch", "engine"]) -> list[boot.Event]:
        try:
            async with self._rpc_lock:
                info = await asyncio.to_thread(self._supervisor.start, name)
        except SupervisorGoneError as error:
            log.warning("start_refused", name=name, reason=str(error))
            return []
        if info.state == "FATAL":
            return [boot.GaveUp(name, info.description)]
        if name == "api":
            return []  # its end is an event like any other
        # It may have ended already. Then its real process id is unknown, and its event will match nothing.
        pid = info.pid if info.runs else -1
        if name == "fetch":
            started: list[boot.Event] = [boot.FetchStarted(pid)]
            return started if info.runs else [*started, boot.FetchExited(pid, info.status, self._last_line("fetch"))]
        if info.runs:
            self._watch(pid)
            return [boot.EngineStarted(pid)]
        return [boot.EngineStarted(pid), boot.EngineExited(pid, info.status, self._last_line("engine"))]

    async def _start_engine(self) -> list[boot.Event]:
        assert self._plan is not None, "the machine plans before it starts an engine"
        config = engine_config(self._settings, self._files, self._plan)
        self._files.engine_config.write_bytes(msgspec.json.encode(config))
        self._files.engine_socket.unlink(missing_ok=True)
        self._logs["engine"].clear()
        return await self._start("engine")

    async def _listen(self, source: asyncio.StreamReader, write: Callable[[bytes], object]) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await listen(source, write, self._hear)
        self._end.set()

    def _hear(self, event: SupervisorEvent) -> None:
        self._live = True
        if isinstance(event, Stopping):
            self._events.put_nowait(boot.StopRequested())
        elif isinstance(event, ProcessLog):
            for line in self._lines[event.program].push(event.text):
                self._logs[event.program].append(line)
                found = PROGRESS.fullmatch(line.strip()) if event.program == "fetch" else None
                if found:
                    self._events.put_nowait(boot.FetchProgress(found[1], int(found[2]), int(found[3])))
        elif event.state in ("EXITED", "FATAL"):
            self._supervisor_events.put_nowait(event)

    async def _follow_programs(self) -> None:
        # The event does not carry the exit status; supervisord keeps it until the next start, which is ours.
        while True:
            event = await self._supervisor_events.get()
            with contextlib.suppress(SupervisorGoneError):
                async with self._rpc_lock:
                    info = await asyncio.to_thread(self._supervisor.program, event.program)
                self._exited(event.program, event.state, event.pid, info)

    def _exited(self, program: str, state: str, pid: int | None, info: ProgramInfo) -> None:
        log.warning("program_ended", name=program, state=state, pid=pid, status=info.status)
        if state == "FATAL":
            self._events.put_nowait(boot.GaveUp(program, self._last_line(program) or info.description))
        elif program == "engine" and pid is not None:
            self._ended_engines.add(pid)
            self._events.put_nowait(boot.EngineExited(pid, info.status, self._last_line("engine")))
        elif program == "fetch" and pid is not None:
            self._events.put_nowait(boot.FetchExited(pid, info.status, self._last_line("fetch")))
        elif program == "api":
            self._events.put_nowait(boot.ApiExited(info.status, self._last_line("api")))

    def _last_line(self, program: str) -> str:
        lines = (line.strip() for line in reversed(self._logs[program]))
        return next((line for line in lines if line), "")

    async def _poll_programs(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_pause()):
                    await self._poll_now.wait()
            self._poll_now.clear()
            with contextlib.suppress(SupervisorGoneError):
                programs = await self._programs()
                for info, pid in (
                    (programs["engine"], self._state.engine_pid),
                    (programs["fetch"], self._state.fetch_pid),
                ):
                    if pid is not None and info.state == "EXITED":
                        await self._told_by_poll(info, pid)

    async def _told_by_poll(self, info: ProgramInfo, pid: int) -> None:
        # Our look has woken supervisord, so the event is on its way, behind the program's last words. Before the
        # first event it may take seconds: a success does not wait for words.
        for _ in range(20):
            if self._live or info.status != 0:
                await asyncio.sleep(0.02 if self._live else 0.1)
            if pid not in (self._state.engine_pid, self._state.fetch_pid):
                return
        self._exited(info.name, "EXITED", pid, info)

    def _poll_pause(self) -> float:
        if not self._live:
            return FIRST_POLL_SECONDS
        connected = self._engine is not None and self._engine.connection is not None
        waits = self._state.fetch_pid is not None or (self._state.engine_pid is not None and not connected)
        return QUICK_POLL_SECONDS if waits else POLL_SECONDS

    async def _programs(self) -> dict[str, ProgramInfo]:
        async with self._rpc_lock:
            return await asyncio.to_thread(self._supervisor.programs)

    async def _call(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            async with self._rpc_lock:
                await asyncio.to_thread(call, *arguments)
        except SupervisorGoneError as error:
            log.warning("supervisor_gone", reason=str(error))

    # Probe and plan

    async def _probe(self) -> None:
        try:
            self._machine = await asyncio.to_thread(
                self._world.probe, self._settings, self._waiting(), tuple(self._ended_engines)
            )
        except NInferError as error:
            self._events.put_nowait(boot.Refused(int(error.exit_code), str(error)))
        except Exception as error:
            log.exception("probe_failed")
            self._events.put_nowait(boot.Refused(ExitCode.RUNTIME, f"the probe failed: {error!r}"))
        else:
            self._events.put_nowait(boot.Probed(""))

    def _waiting(self) -> Callable[[str], None]:
        loop = asyncio.get_running_loop()

        def report(detail: str) -> None:
            loop.call_soon_threadsafe(self._events.put_nowait, boot.Waiting(detail))

        return report

    async def _make_plan(self) -> None:
        try:
            plan = await asyncio.to_thread(self._world.plan, self._settings, self._machine)
        except NInferError as error:
            self._events.put_nowait(boot.Refused(int(error.exit_code), str(error)))
        except Exception as error:
            log.exception("plan_failed")
            self._events.put_nowait(boot.Refused(ExitCode.RUNTIME, f"the plan failed: {error!r}"))
        else:
            self._plan = plan
            detail = f"{plan.lanes} lane{'s' if plan.lanes > 1 else ''}, {plan.max_context} tokens"
            self._events.put_nowait(boot.Planned(detail, plan.as_dict()))

    # The engine

    def _watch(self, pid: int) -> None:
        self._engine = Watched(pid)
        self._spawn(self._watch_engine(self._engine))

    async def _watch_engine(self, engine: Watched) -> None:
        """Stay connected for as long as this process is the engine."""
        while self._engine is engine and (self._state.engine_pid in (engine.pid, None)):
            try:
                connection = await EngineConnection.open(self._files.engine_socket)
            except (OSError, ProtocolError) as error:
                if isinstance(error, ProtocolError):
                    log.error("engine_speaks_otherwise", reason=str(error))
                await asyncio.sleep(0.1)
                continue
            engine.connection = connection
            asking = asyncio.create_task(self._ask(connection))
            try:
                self._events.put_nowait(boot.EngineAnswered(engine.pid))
                while True:
                    self._word(engine, await connection.receive())
            except (OSError, ProtocolError) as error:
                log.info("engine_connection_ended", reason=str(error))
            finally:
                asking.cancel()
                connection.close()
                engine.connection = None
                engine.answers.put_nowait(None)
                self._poll_now.set()
            await asyncio.sleep(0.1)

    async def _ask(self, connection: EngineConnection) -> None:
        with contextlib.suppress(OSError):
            while True:
                await connection.send(AskStatistics())
                await asyncio.sleep(self._policy.silence / 4)

    def _word(self, engine: Watched, message: EngineMessage) -> None:
        if isinstance(message, Boot):
            said = boot.EngineBoot(engine.pid, message.phase, message.detail, message.done, message.total, message.unit)
            self._events.put_nowait(said)
            return
        if isinstance(message, Limits):
            if not engine.limits.done():
                engine.limits.set_result(message)
        elif isinstance(message, Tokens | Rejected):
            engine.answers.put_nowait(message)
        elif isinstance(message, Statistics):
            engine.statistics = message
            busy = message.running + message.waiting > 0
            self._events.put_nowait(boot.EngineWork(engine.pid, busy, proof.work_done(message)))
            return
        self._events.put_nowait(boot.EngineAnswered(engine.pid))

    async def _prove(self, pid: int) -> None:
        engine = self._engine
        if engine is None or engine.pid != pid or engine.connection is None:
            self._events.put_nowait(boot.ProofFailed(pid, "the connection ended"))
            return
        connection = engine.connection
        while not engine.answers.empty():
            engine.answers.get_nowait()
        before, request = proof.work_done(engine.statistics), next(engine.requests)
        try:
            async with asyncio.timeout(self._policy.proof):
                limits = await asyncio.shield(engine.limits)
                answer = await proof.decode(connection, engine.answers, limits.token_count, request)
            key = proof_key(self._settings.options, connection.hello.fingerprint)
            first = proof.compare(self._settings.state / "proofs", key, answer)
        except proof.BusyError as error:
            log.info("proof_skipped", reason=str(error))
            await asyncio.sleep(self._policy.backoff)
            self._events.put_nowait(boot.ProofSkipped(pid))
        except TimeoutError:
            with contextlib.suppress(OSError):
                await connection.send(Cancel(id=request))
            now = engine.statistics
            if now.running + now.waiting > 1 and proof.work_done(now) != before:
                log.info("proof_skipped", reason="the engine is at work for others")
                self._events.put_nowait(boot.ProofSkipped(pid))
                return
            reason = f"no answer to the proof prompt within {self._policy.proof:g} s"
            self._events.put_nowait(boot.ProofFailed(pid, reason))
        except (proof.ProofError, OSError) as error:
            self._events.put_nowait(boot.ProofFailed(pid, str(error)))
        else:
            log.info("engine_proved", tokens=len(answer), first=first)
            self._events.put_nowait(boot.Proved(pid, ""))

    # State

    def _snapshot(self) -> State:
        state = self._state
        since = self._world.wall_clock() - (self._world.clock() - state.phase_began)
        if (
            self._published is not None
            and self._published.phase == state.phase
            and abs(self._published.since - since) < 1
        ):
            since = self._published.since
        return State(
            phase=state.phase,
            detail=state.detail,
            done=state.done,
            total=state.total,
            unit=state.unit,
            since=round(since, 3),
            restarts=state.restarts,
            exit_code=state.exit_code,
            engine_pid=state.engine_pid,
            plan=state.plan,
            url=self._settings.url,
            findings=self._findings,
            log=tuple(self._logs[state.failing]) if state.failing else (),
        )

    def _publish(self) -> None:
        now, state, before = self._world.clock(), self._snapshot(), self._published
        if state == before:
            return
        small = before is not None and _same_but_progress(state, before)
        if small and now - self._published_at < PROGRESS_SECONDS:
            return
        try:
            write_state(self._settings.state_file, state)
        except OSError as error:
            # A full disk must not end a box that works.
            log.error("state_not_written", file=str(self._settings.state_file), reason=str(error))
        self._published, self._published_at = state, now

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._defect = task.exception()
            self._end.set()


def _last_state(file: Path) -> State | None:
    try:
        return read_state(file)
    except (OSError, msgspec.MsgspecError):
        return None


async def run(config: ControllerConfig, surroundings: Surroundings) -> None:
    """The whole program, on this process's stdin and stdout."""
    source = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(source), sys.stdin)
    controller = Controller(config.settings(), RunFiles(Path(config.run)), config.policy, surroundings)
    try:
        # A few bytes on a pipe that supervisord reads: this never waits.
        await controller.run(source, lambda data: os.write(sys.stdout.fileno(), data))
    finally:
        transport.close()


def this_machine() -> Surroundings:
    """The machine we run on."""
    from appliance import doctor  # noqa: PLC0415  (NVML is loaded only for these)
    from appliance.sizing import make_plan, probe_machine  # noqa: PLC0415

    def examine(settings: Settings) -> list[Finding]:
        # The artifact was verified by `fetch`; nobody reads 18 GB twice at a start.
        return [finding.told() for finding in doctor.examine(settings, hash_artifact=False)]

    return Surroundings(probe=probe_machine, plan=make_plan, examine=examine)


def main(arguments: Sequence[str], surroundings: Surroundings | None = None) -> int:
    """`python -m appliance.controller FILE`."""
    config = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=ControllerConfig)
    options = config.settings().options
    configure("controller", options.log_level, json=options.log_json)
    if surroundings is None:
        surroundings = this_machine()
    asyncio.run(run(config, surroundings))
    return 0


def _same_but_progress(one: State, other: State) -> bool:
    """Whether two snapshots tell the same story at another point of it."""
    blank = {"detail": "", "done": 0, "total": 0, "unit": ""}
    return msgspec.structs.replace(one, **blank) == msgspec.structs.replace(other, **blank)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
