"""One request on its way through the engine, whatever protocol it came in: prompt, tokens, text, account."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.api.config import GenerationDefaults
from engine.api.constraints import Form, constraint_of, lane_error, observation
from engine.api.engine_link import EngineLink, EngineLostError
from engine.api.errors import ApiError, context_length, internal, invalid, queue_timeout, unavailable
from engine.api.model import ServedModel
from engine.api.sampling import SamplingFields, resolve_sampling
from engine.api.tools import NO_TOOLS, Toolset
from engine.constraint.constraint import Constraint
from engine.log import get_logger
from engine.protocol import (
    Finish,
    LaneTokens,
    Limits,
    Progress,
    Rejected,
    Sampling,
    Submit,
    Thinking,
    Timings,
    pack_ids,
    unpack_ids,
)
from engine.text import Delta, Prompt, PromptError
from engine.text.reasoning import THINK_CLOSE
from engine.text.tool_calls import Parsed
from engine.text.tool_events import CallArguments, CallEnd, CallStart
from engine.text.tools import Kind

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a request wants, in no protocol's terms. None is unspecified; limit and budget count tokens."""

    messages: list[dict[str, Any]]
    sampling: SamplingFields
    continue_final_message: bool = False
    output_limit: int | None = None
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    preserve_thinking: bool | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    thinking_budget: int | None = None
    tools: Toolset = NO_TOOLS
    tool_constraints: Literal["basic", "auto"] | None = None
    form: Form | None = None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request ready for the engine. `max_tokens` 0 asks for the prompt's count alone."""

    model: ServedModel
    token_ids: bytes
    prompt_tokens: int
    thinking: bool
    sampling: Sampling
    max_tokens: int
    context_bound: bool  # max_tokens is what the context leaves, and nothing asked for less or as much
    stops: tuple[str, ...]
    stop_ids: tuple[int, ...]
    thought: Thinking | None = None
    tools: Toolset = NO_TOOLS
    constraint: Constraint | None = None


def render(ask: Ask, model: ServedModel, defaults: GenerationDefaults) -> Prompt:
    """The prompt's tokens, however many. Slow for large prompts; runs in a worker thread.

    Raises:
        ApiError: the prompt cannot be made.
    """
    try:
        return model.frontend.prepare(
            ask.messages,
            tools=ask.tools.declarations(),
            enable_thinking=ask.enable_thinking,
            reasoning_effort=ask.reasoning_effort,
            preserve_thinking=ask.preserve_thinking,
            template_kwargs=ask.template_kwargs,
            continue_final_message=ask.continue_final_message,
            default_thinking=False if defaults.no_thinking else None,
            default_effort=defaults.reasoning_effort,
        )
    except PromptError as error:
        raise invalid(error.message, code=error.code, param=error.param) from error


def prepare(ask: Ask, model: ServedModel, limits: Limits, defaults: GenerationDefaults) -> Prepared:
    """Render, tokenise and bound one request. Slow for large prompts; runs in a worker thread.

    Raises:
        ApiError: the prompt cannot be made or does not fit, or the form of the answer cannot be enforced.
    """
    constraint = constraint_of(
        ask.form, ask.tools, tool_constraints=ask.tool_constraints, stops=bool(ask.stops), ignore_eos=ask.ignore_eos
    )
    prompt = render(ask, model, defaults)
    tokens = len(prompt.token_ids)
    if tokens > limits.max_context:
        raise context_length(tokens, limits.max_context)
    left = limits.max_context - tokens
    stated = defaults.default_max_tokens if ask.output_limit is None else ask.output_limit
    asked = min((bound for bound in (stated, defaults.max_output_tokens) if bound is not None), default=None)
    return Prepared(
        model=model,
        token_ids=pack_ids(prompt.token_ids),
        prompt_tokens=tokens,
        thinking=prompt.thinking,
        sampling=resolve_sampling(model.name, ask.sampling, defaults, thinking=prompt.thinking),
        max_tokens=left if asked is None else min(left, asked),
        context_bound=asked is None or left < asked,
        stops=ask.stops,
        stop_ids=() if ask.ignore_eos else tuple(model.frontend.stop_ids),
        thought=_thought(ask, model, defaults, constraint) if prompt.thinking else None,
        tools=ask.tools,
        constraint=constraint,
    )


def _thought(
    ask: Ask, model: ServedModel, defaults: GenerationDefaults, constraint: Constraint | None
) -> Thinking | None:
    """What the engine must know of the thought that the prompt has opened: its budget, and that it has an end."""
    budget = defaults.default_thinking_budget if ask.thinking_budget is None else ask.thinking_budget
    if budget is None:
        return None if constraint is None else Thinking(close=THINK_CLOSE.encode())
    wrap_up = model.frontend.wrap_up(after=constraint is None or not constraint.exact)
    return Thinking(close=THINK_CLOSE.encode(), budget=budget, wrap_up=pack_ids(wrap_up))


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that became certain."""

    reasoning: bool
    text: str


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Prefill got further; `Account` has the numbers."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing happened for a while; the client may want a sign of life."""


Event = TextDelta | CallStart | CallArguments | CallEnd | Prefilled | Silence


@dataclass
class MadeCall:
    """A call of the answer."""

    name: str
    kind: Kind
    pieces: list[str] = field(default_factory=list)
    complete: bool = False

    @property
    def arguments(self) -> str:
        """JSON text, or the raw input of a custom tool."""
        return "".join(self.pieces)


class Gathered:
    """An answer as far as it came; feed it every event. A call that was cut stays incomplete and is none."""

    def __init__(self) -> None:
        self.calls: list[MadeCall] = []
        self._reasoning: list[str] = []
        self._content: list[str] = []

    @property
    def reasoning(self) -> str:
        """The thought."""
        return "".join(self._reasoning)

    @property
    def content(self) -> str:
        """The text of the answer."""
        return "".join(self._content)

    def take(self, event: Event) -> None:
        """Add one event."""
        if isinstance(event, TextDelta):
            (self._reasoning if event.reasoning else self._content).append(event.text)
        elif isinstance(event, CallStart):
            self.calls.append(MadeCall(event.name, event.kind))
        elif isinstance(event, CallArguments):
            self.calls[event.index].pieces.append(event.text)
        elif isinstance(event, CallEnd):
            self.calls[event.index].complete = True


async def gather(events: AsyncIterator[Event]) -> Gathered:
    """The whole answer."""
    gathered = Gathered()
    async for event in events:
        gathered.take(event)
    return gathered


@dataclass
class Account:
    """What one request has used so far. Times are `time.monotonic` seconds.

    `on_first_token` is called with the seconds from arrival to the first token.
    """

    arrived: float
    on_first_token: Callable[[float], None] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    processed_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    reasoning_tokens: int = 0
    engine_id: int | None = None
    prepared: float | None = None
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    finish: Finish | None = None
    stop: str | None = None
    parsed: Parsed | None = None  # how calls were read, once the answer is complete
    calls: int = 0
    engine: Timings | None = None
    constraint: dict[str, Any] | None = None  # the observation, of a constrained answer that is complete

    @property
    def generated(self) -> int:
        """Tokens sampled, the stop included."""
        return len(self.token_ids)

    @property
    def ended_itself(self) -> bool:
        """The model ended its turn; nothing cut the answer."""
        return self.finish == "stop_id"

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt_tokens + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }

    def progress(self) -> dict[str, Any]:
        """llama.cpp's prompt_progress object."""
        since = 0.0 if self.admitted is None else time.monotonic() - self.admitted
        return {
            "total": self.prompt_tokens,
            "cache": self.cached_tokens,
            "processed": self.processed_tokens,
            "time_ms": round(since * 1000, 3),
        }

    def timings(self) -> dict[str, Any]:
        """llama.cpp's timings object: by the engine's clock once it has reported, else by ours."""
        if self.engine is not None:
            prefill, decode, prompt = self.engine.prefill, self.engine.decode, self.engine.prefill_tokens
        else:
            begin = self.arrived if self.admitted is None else self.admitted
            first = time.monotonic() if self.first_token is None else self.first_token
            prefill, prompt = max(0.0, first - begin), self.prompt_tokens - self.cached_tokens
            decode = 0.0 if self.last_token is None else self.last_token - first
        intervals = max(0, self.generated - 1)
        return {
            "cache_n": self.cached_tokens,
            "prompt_n": prompt,
            "prompt_ms": round(prefill * 1000, 3),
            "prompt_per_token_ms": _ratio(prefill * 1000, prompt),
            "prompt_per_second": _ratio(prompt, prefill),
            "predicted_n": self.generated,
            "predicted_ms": round(decode * 1000, 3),
            "predicted_per_token_ms": _ratio(decode * 1000, intervals),
            "predicted_per_second": _ratio(intervals, decode),
        }


def _ratio(amount: float, per: float) -> float:
    return round(amount / per, 3) if per > 0 else 0.0


async def generate(
    link: EngineLink,
    prepared: Prepared,
    account: Account,
    *,
    pending_timeout_ms: int,
    silence: float,
    cache_salt: bytes = b"",
) -> AsyncGenerator[Event, None]:
    """Have the engine answer; text and calls of the events are the answer. Closing the generator cancels the request.

    `account` is kept up to date and complete when the generator ends. `silence` is in seconds.

    Raises:
        ApiError: the engine refused, failed or died.
    """
    account.prompt_tokens = prepared.prompt_tokens
    if prepared.max_tokens == 0:
        account.finish = "length"
        return
    left = account.arrived + pending_timeout_ms / 1000 - time.monotonic()
    if left <= 0:
        raise queue_timeout(pending_timeout_ms)
    constraint = prepared.constraint
    exact = constraint is not None and constraint.exact
    output = prepared.model.frontend.output(prepared.thinking, prepared.stops, exact=exact)
    calls = prepared.tools.reader()
    try:
        stream = link.submit(lambda request: _submit(request, prepared, left, cache_salt))
        account.engine_id = stream.id
        with stream:
            spoke = time.monotonic()
            while account.finish is None:
                answer = await stream.next(spoke + silence - time.monotonic())
                if answer is None:
                    yield Silence()
                    spoke = time.monotonic()
                    continue
                if isinstance(answer, Rejected):
                    raise _rejected(answer, pending_timeout_ms)
                if isinstance(answer, Progress):
                    _note_progress(account, answer)
                    yield Prefilled()
                    spoke = time.monotonic()
                    continue
                ids = _note_tokens(account, answer)
                deltas = output.push(ids)
                if output.stopped is not None and account.finish is None:
                    account.finish = "stop_string"  # leaving the stream cancels what the engine has not stopped
                if account.finish is not None:
                    deltas += output.finish()
                account.reasoning_tokens = output.reasoning_tokens
                account.stop = output.stopped
                made: Sequence[Delta | CallStart | CallArguments | CallEnd] = deltas
                if calls is not None:
                    made = calls.push(deltas)
                    if account.finish is not None:
                        made = [*made, *calls.finish(ended=account.ended_itself)]
                        account.parsed = calls.result
                account.calls += sum(isinstance(one, CallEnd) for one in made)
                if answer.constraint is not None:
                    account.constraint = observation(
                        answer.constraint,
                        account.finish,
                        content=account.generated > account.reasoning_tokens + account.ended_itself,
                        calls=account.calls > 0,
                    )
                for one in made:
                    yield TextDelta(one.channel == "reasoning", one.text) if isinstance(one, Delta) else one
                    spoke = time.monotonic()
    except EngineLostError as error:
        raise unavailable(f"the engine stopped while it worked on this request ({error}); try again") from error


def _submit(request: int, prepared: Prepared, deadline: float, cache_salt: bytes) -> Submit:
    # The engine matches bytes and knows no channels. A thinking answer is searched channel by channel, by `output`.
    constraint = prepared.constraint
    stops = () if prepared.thinking else tuple(stop.encode() for stop in prepared.stops)
    return Submit(
        id=request,
        token_ids=prepared.token_ids,
        sampling=prepared.sampling,
        max_tokens=prepared.max_tokens,
        stop_ids=prepared.stop_ids,
        stop_strings=stops,
        thinking=prepared.thought,
        constraint=None if constraint is None else constraint.source(after_thought=prepared.thinking),
        deadline_seconds=deadline,
        cache_salt=cache_salt,
    )


def _note_progress(account: Account, progress: Progress) -> None:
    if account.admitted is None:
        account.admitted = time.monotonic()
    account.cached_tokens, account.processed_tokens = progress.cached, progress.processed


def _note_tokens(account: Account, lane: LaneTokens) -> list[int]:
    """Record what came; return the new ids."""
    ids: list[int] = unpack_ids(lane.token_ids).tolist()
    if ids:
        account.last_token = time.monotonic()
        if account.first_token is None:
            account.first_token = account.last_token
            if account.on_first_token is not None:
                account.on_first_token(account.first_token - account.arrived)
        account.token_ids += ids
    if lane.finish == "error" and lane.error_code:
        log.warning("constraint_failed", code=lane.error_code, reason=lane.error)
        raise lane_error(lane.error_code, lane.error)
    if lane.finish == "error":
        log.error("generation_failed", reason=lane.error)
        raise internal()
    if lane.finish == "cancelled":
        raise unavailable("the engine gave this request up; it is shutting down")
    account.finish = lane.finish
    if lane.timings is not None:
        account.engine = lane.timings
        account.cached_tokens = lane.timings.cached_tokens
    return ids


def _rejected(answer: Rejected, pending_timeout_ms: int) -> ApiError:
    if answer.code == "queue_timeout":
        return queue_timeout(pending_timeout_ms)
    if answer.code == "overloaded":
        return ApiError(
            429, answer.message, kind="rate_limit_error", code="server_overloaded", retry_after=2
        )  # fmt: skip
    if answer.code == "unavailable":
        return unavailable(answer.message)
    codes = {"context_length": "context_length_exceeded", "not_supported": "parameter_not_supported"}
    return invalid(answer.message, code=codes.get(answer.code, "invalid_prompt"))
