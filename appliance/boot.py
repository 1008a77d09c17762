"""The boot state machine and the crash policy: pure functions of events and time.

`step(state, event, now, policy)` returns the next state and the actions to carry out. Nothing here reads a clock,
starts a process or writes a file, so that every path can be driven by a test.

    fetch → probe → plan → load → reserve → warm-up → prove → ready

The box is `ready` only after the engine's answer to the proof prompt. An engine that ends is started again from
`probe`, because memory may look different now; exits are counted in a window. Faults that a restart cannot heal end
the box at once, with the engine's own status.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from appliance.policy import Policy
from engine.exits import ExitCode
from engine.protocol import Phase

LONGEST_WORDS = 300  # characters of a last line that go into a reason
UNHEALABLE = frozenset({ExitCode.CONFIGURATION, ExitCode.NO_DEVICE, ExitCode.BAD_ARTIFACT, ExitCode.DOES_NOT_FIT})
ENGINE_PHASES: tuple[Phase, ...] = ("load", "reserve", "warm-up")


@dataclass(frozen=True, kw_only=True)
class BootState:
    """Everything the machine remembers. Times are seconds of the monotonic clock given to `step`."""

    phase: Phase = "probe"
    detail: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""
    phase_began: float = 0.0
    engine_pid: int | None = None
    fetch_pid: int | None = None
    engine_exits: tuple[float, ...] = ()
    api_exits: tuple[float, ...] = ()
    fetch_failures: int = 0
    restarts: int = 0
    proven: bool = False
    heard: float = 0.0  # last word of this engine
    greeted: bool = False  # this engine has spoken
    proving: bool = False  # a proof of a ready engine is on its way
    idle_since: float = 0.0  # when this engine last had work, or its last proof ended
    work_done: int | None = None  # the engine's count of work at its last report; None before one
    fault: str = ""  # why this engine was killed, or its own last words
    due: float | None = None  # when the next start happens
    api_due: float | None = None  # when the api starts again
    plan: dict[str, Any] = dataclasses.field(default_factory=dict)
    exit_code: int | None = None
    stopping: bool = False
    shut_down: bool = False
    failing: str = ""  # the program whose last lines explain the failure


# Events


@dataclass(frozen=True)
class Begin:
    """Power-on. `fetch` is False when the model is a file that is already here."""

    fetch: bool


@dataclass(frozen=True)
class FetchStarted:
    pid: int


@dataclass(frozen=True)
class FetchProgress:
    detail: str
    done: int
    total: int


@dataclass(frozen=True)
class FetchExited:
    """`said` is the last line it printed."""

    pid: int
    status: int
    said: str = ""


@dataclass(frozen=True)
class Waiting:
    """The probe is waiting for something outside of us."""

    detail: str


@dataclass(frozen=True)
class Probed:
    detail: str


@dataclass(frozen=True)
class Planned:
    detail: str
    plan: dict[str, Any]


@dataclass(frozen=True)
class Refused:
    """Probe or plan found no way; `code` is the status the box ends with."""

    code: int
    reason: str


@dataclass(frozen=True)
class EngineStarted:
    pid: int


@dataclass(frozen=True)
class EngineFound:
    """A controller that was itself restarted finds a running engine, and what its predecessor had written down."""

    pid: int
    plan: dict[str, Any]
    restarts: int


@dataclass(frozen=True)
class EngineBoot:
    """The engine says where its start is."""

    pid: int
    phase: Phase
    detail: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""


@dataclass(frozen=True)
class EngineAnswered:
    """Any other word of the engine."""

    pid: int


@dataclass(frozen=True)
class EngineExited:
    """`status` is negative when a signal ended it; `said` is the last line it printed."""

    pid: int
    status: int
    said: str = ""


@dataclass(frozen=True)
class EngineWork:
    """The engine's report of its work: whether it has requests now, and a count that grows with all it does."""

    pid: int
    busy: bool
    done: int


@dataclass(frozen=True)
class Proved:
    pid: int
    detail: str


@dataclass(frozen=True)
class ProofFailed:
    pid: int
    reason: str


@dataclass(frozen=True)
class ProofSkipped:
    """The engine was at work for others and got to no answer: that says nothing against it."""

    pid: int


@dataclass(frozen=True)
class ApiExited:
    status: int
    said: str = ""


@dataclass(frozen=True)
class GaveUp:
    """supervisord could not start this program (FATAL)."""

    program: str
    reason: str


@dataclass(frozen=True)
class StopRequested:
    pass


@dataclass(frozen=True)
class Tick:
    pass


Event = (
    Begin
    | FetchStarted
    | FetchProgress
    | FetchExited
    | Waiting
    | Probed
    | Planned
    | Refused
    | EngineStarted
    | EngineFound
    | EngineBoot
    | EngineAnswered
    | EngineExited
    | EngineWork
    | Proved
    | ProofFailed
    | ProofSkipped
    | ApiExited
    | GaveUp
    | StopRequested
    | Tick
)


# Actions


@dataclass(frozen=True)
class StartFetch:
    pass


@dataclass(frozen=True)
class StartApi:
    pass


@dataclass(frozen=True)
class Probe:
    pass


@dataclass(frozen=True)
class Plan:
    pass


@dataclass(frozen=True)
class StartEngine:
    pass


@dataclass(frozen=True)
class Prove:
    pid: int


@dataclass(frozen=True)
class KillEngine:
    reason: str


@dataclass(frozen=True)
class ShutDown:
    code: int


Action = StartFetch | StartApi | Probe | Plan | StartEngine | Prove | KillEngine | ShutDown
Step = tuple[BootState, tuple[Action, ...]]


def step(state: BootState, event: Event, now: float, policy: Policy) -> Step:
    """The next state and what to do. Events of an earlier process of the same program change nothing."""
    if isinstance(event, StopRequested):
        if state.exit_code is not None:  # the failure stays what people read
            return dataclasses.replace(state, stopping=True, due=None), ()
        return _enter(dataclasses.replace(state, stopping=True, due=None), "draining", "stopping", now), ()
    if state.stopping or state.shut_down:
        return state, ()
    if state.exit_code is not None:
        if isinstance(event, Tick) and now >= state.phase_began + policy.linger:
            return dataclasses.replace(state, shut_down=True), (ShutDown(state.exit_code),)
        return state, ()
    if isinstance(event, Tick):
        return _tick(state, now, policy)
    if isinstance(event, Begin):
        return _begin(state, event, now)
    if isinstance(event, FetchStarted | FetchProgress | FetchExited):
        return _fetch(state, event, now, policy)
    if isinstance(event, Waiting | Probed | Planned | Refused):
        return _size(state, event, now, policy)
    if isinstance(event, EngineStarted):
        if state.phase != "load" or state.engine_pid is not None:
            return state, ()
        return _new_engine(state, event.pid, now), ()
    if isinstance(event, EngineFound):
        state = dataclasses.replace(_enter(state, "load", "", now), plan=event.plan, restarts=event.restarts)
        return _new_engine(state, event.pid, now), ()
    if isinstance(event, ApiExited):
        return _api_exited(state, event, now, policy)
    if isinstance(event, GaveUp):
        return _fail(state, ExitCode.RUNTIME, event.program, f"{event.program} does not start: {event.reason}", now)
    return _engine(state, event, now, policy)


def next_deadline(state: BootState, policy: Policy) -> float | None:
    """When `Tick` is due next, on the clock given to `step`; None when only an event can change anything."""
    if state.stopping or state.shut_down:
        return None
    if state.exit_code is not None:
        return state.phase_began + policy.linger
    engine = state.due if state.engine_pid is None else state.heard + _patience(state, policy)
    return min((at for at in (engine, state.api_due) if at is not None), default=None)


def backoff(failures: int, first: float, limit: float) -> float:
    """Seconds before the start after `failures` ≥ 1 failures: doubling, bounded."""
    return min(limit, first * 2.0 ** min(failures - 1, 60))


def box_status(status: int) -> int:
    """The box's status for an engine's: ours is kept, anything else (1, a signal, an unasked-for 0) is RUNTIME."""
    return status if status in UNHEALABLE else int(ExitCode.RUNTIME)


def describe(status: int, said: str = "") -> str:
    """An exit status in words, with the last words of the program."""
    meaning = _meaning(status)
    # Who is killed by a signal does not say why in its last line.
    return f"{meaning}: {said[:LONGEST_WORDS]}" if said and status >= 0 else meaning


def _meaning(status: int) -> str:
    if status < 0:
        return "ended by a signal"
    names = {
        ExitCode.CLEAN: "ended by itself",
        ExitCode.CONFIGURATION: "configuration error",
        ExitCode.RUNTIME: "failure at run time",
        ExitCode.NO_DEVICE: "no usable GPU",
        ExitCode.BAD_ARTIFACT: "bad artifact",
        ExitCode.DOES_NOT_FIT: "does not fit in memory",
    }
    name = names.get(ExitCode(status)) if status in set(ExitCode) else None
    return f"status {status}" + (f", {name}" if name else "")


def _begin(state: BootState, event: Begin, now: float) -> Step:
    if event.fetch:
        return _enter(state, "fetch", "checking the artifact", now), (StartFetch(),)
    return _enter(state, "probe", "", now), (Probe(),)


def _fetch(state: BootState, event: FetchStarted | FetchProgress | FetchExited, now: float, policy: Policy) -> Step:
    if state.phase != "fetch":
        return state, ()
    if isinstance(event, FetchStarted):
        return dataclasses.replace(state, fetch_pid=event.pid), ()
    if isinstance(event, FetchProgress):
        if state.fetch_pid is None:
            return state, ()
        return dataclasses.replace(state, detail=event.detail, done=event.done, total=event.total, unit="bytes"), ()
    if event.pid != state.fetch_pid:
        return state, ()
    state = dataclasses.replace(state, fetch_pid=None)
    if event.status == 0:
        return _enter(dataclasses.replace(state, fetch_failures=0), "probe", "", now), (Probe(),)
    if event.status in UNHEALABLE:
        return _fail(state, event.status, "fetch", f"fetch: {describe(event.status, event.said)}", now)
    failures = state.fetch_failures + 1
    wait = backoff(failures, policy.backoff, policy.fetch_backoff_limit)
    detail = f"fetch failed ({describe(event.status, event.said)}), try {failures + 1} in {wait:g} s"
    return dataclasses.replace(state, fetch_failures=failures, due=now + wait, detail=detail), ()


def _size(state: BootState, event: Waiting | Probed | Planned | Refused, now: float, policy: Policy) -> Step:
    # `fetch` too: what can be known to fail is known before gigabytes are fetched.
    if state.phase not in ("fetch", "probe", "plan") or state.due is not None:
        return state, ()
    if isinstance(event, Refused):
        return _fail(state, event.code, "", event.reason, now)
    if isinstance(event, Waiting):
        return dataclasses.replace(state, detail=event.detail), ()
    if isinstance(event, Probed):
        if state.phase != "probe":
            return state, ()
        return _enter(state, "plan", event.detail, now), (Plan(),)
    if state.phase != "plan":
        return state, ()
    return dataclasses.replace(_enter(state, "load", event.detail, now), plan=event.plan), (StartEngine(),)


def _engine(
    state: BootState,
    event: EngineBoot | EngineAnswered | EngineExited | EngineWork | Proved | ProofFailed | ProofSkipped,
    now: float,
    policy: Policy,
) -> Step:
    if event.pid != state.engine_pid:
        return state, ()
    if isinstance(event, EngineExited):
        return _engine_exited(state, event, now, policy)
    state = dataclasses.replace(state, heard=now, greeted=True)
    if isinstance(event, EngineBoot):
        if event.phase == "ready":
            if state.phase in ENGINE_PHASES:
                return _enter(state, "prove", "decoding a known prompt", now), (Prove(event.pid),)
            return state, ()
        if event.phase not in ENGINE_PHASES:
            # It is leaving. `failed` is the box's word, not the engine's: the engine may come back.
            leaving = _enter(state, "draining", event.detail, now)
            fault = event.detail if event.phase == "failed" else state.fault
            return dataclasses.replace(leaving, proven=False, fault=fault), ()
        if state.phase not in ENGINE_PHASES:
            return state, ()
        if event.phase != state.phase:
            state = _enter(state, event.phase, event.detail, now)
        return (
            dataclasses.replace(state, detail=event.detail, done=event.done, total=event.total, unit=event.unit),
            (),
        )
    if isinstance(event, EngineWork):
        return _worked(state, event, now, policy)
    if isinstance(event, Proved | ProofFailed | ProofSkipped):
        return _judged(state, event, now)
    return state, ()


def _worked(state: BootState, event: EngineWork, now: float, policy: Policy) -> Step:
    """Prove an idle engine again. The report that shows it idle decides, so that the news is fresh."""
    if state.phase != "ready" or state.proving:
        return state, ()
    if event.busy or (state.work_done is not None and event.done != state.work_done):
        return dataclasses.replace(state, work_done=event.done, idle_since=now), ()
    state = dataclasses.replace(state, work_done=event.done)
    if now - state.idle_since < policy.idle:
        return state, ()
    return dataclasses.replace(state, proving=True), (Prove(event.pid),)


def _judged(state: BootState, event: Proved | ProofFailed | ProofSkipped, now: float) -> Step:
    if state.phase != "prove" and not (state.phase == "ready" and state.proving):
        return state, ()
    if isinstance(event, ProofFailed):
        reason = f"proof failed: {event.reason}"
        if state.phase == "ready":
            state = _enter(state, "prove", reason, now)  # nobody may call it ready any more
        return dataclasses.replace(state, detail=reason, fault=reason, proving=False, proven=False), (
            KillEngine(reason),
        )
    if state.phase == "prove":
        if isinstance(event, ProofSkipped):  # it must answer once before it may have work
            return state, (Prove(event.pid),)
        state = _enter(state, "ready", event.detail, now)
    # The proof was work too: the count begins with the next report.
    return dataclasses.replace(state, proven=True, proving=False, idle_since=now, work_done=None), ()


def _new_engine(state: BootState, pid: int, now: float) -> BootState:
    return dataclasses.replace(state, engine_pid=pid, heard=now, greeted=False, proven=False, proving=False, fault="")


def _engine_exited(state: BootState, event: EngineExited, now: float, policy: Policy) -> Step:
    said = f"{state.fault} ({describe(event.status)})" if state.fault else describe(event.status, event.said)
    exits = _recent(state.engine_exits, now, policy)
    state = dataclasses.replace(state, engine_pid=None, proven=False, greeted=False, engine_exits=exits)
    if event.status in UNHEALABLE:
        return _fail(state, event.status, "engine", f"engine: {said}", now)
    if len(exits) >= policy.exits:
        return _fail(state, event.status, "engine", _crash_loop("engine", policy, said), now)
    wait = backoff(len(exits), policy.backoff, policy.backoff_limit)
    detail = f"the engine ended: {said}; start {len(exits) + 1} of {policy.exits} in {wait:g} s"
    state = _enter(state, "probe", detail, now)
    return dataclasses.replace(state, restarts=state.restarts + 1, due=now + wait), ()


def _api_exited(state: BootState, event: ApiExited, now: float, policy: Policy) -> Step:
    exits = _recent(state.api_exits, now, policy)
    state = dataclasses.replace(state, api_exits=exits)
    said = describe(event.status, event.said)
    if event.status in UNHEALABLE:
        return _fail(state, event.status, "api", f"api: {said}", now)
    if len(exits) >= policy.exits:
        return _fail(state, event.status, "api", _crash_loop("api", policy, said), now)
    # The first time at once: it is the face of the box.
    wait = backoff(len(exits) - 1, policy.backoff, policy.backoff_limit) if len(exits) > 1 else 0.0
    return dataclasses.replace(state, api_due=now + wait), ()


def _tick(state: BootState, now: float, policy: Policy) -> Step:
    if state.api_due is not None and now >= state.api_due:
        after, actions = _tick(dataclasses.replace(state, api_due=None), now, policy)
        return after, (StartApi(), *actions)
    if state.due is not None and now >= state.due:
        state = dataclasses.replace(state, due=None)
        if state.phase == "fetch":
            return dataclasses.replace(state, detail="checking the artifact"), (StartFetch(),)
        return dataclasses.replace(state, detail=""), (Probe(),)
    if state.engine_pid is not None and now >= state.heard + _patience(state, policy):
        reason = f"no answer from the engine for {_patience(state, policy):g} s"
        # The limit starts again, so that a kill that did not work is repeated.
        return dataclasses.replace(state, heard=now, detail=reason, fault=reason), (KillEngine(reason),)
    return state, ()


def _patience(state: BootState, policy: Policy) -> float:
    if not state.greeted:
        return policy.connect
    return policy.boot_silence if state.phase in ENGINE_PHASES else policy.silence


def _recent(exits: tuple[float, ...], now: float, policy: Policy) -> tuple[float, ...]:
    return (*(at for at in exits if now - at < policy.window), now)[-policy.exits :]


def _crash_loop(program: str, policy: Policy, said: str) -> str:
    return f"{program} ended {policy.exits} times within {policy.window:g} s, the last time: {said}"


def _fail(state: BootState, status: int, program: str, reason: str, now: float) -> Step:
    failed = _enter(state, "failed", reason, now)
    return (
        dataclasses.replace(failed, exit_code=box_status(status), proven=False, failing=program),
        (),
    )


def _enter(state: BootState, phase: Phase, detail: str, now: float) -> BootState:
    return dataclasses.replace(state, phase=phase, detail=detail, done=0, total=0, unit="", phase_began=now, due=None)
