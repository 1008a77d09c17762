"""A Messages request in no protocol's terms: turns joined, results paired with calls (spec/serving.md §9).

Claude Code puts a line that changes with every request at the head of its system prompt. It is left out, because a
prompt that differs from its first token on is never found in a cache (spec/cases.md A6).
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from engine.api.errors import invalid
from engine.api.generation import Ask
from engine.api.messages_request import (
    LONGEST_NAME,
    CacheControl,
    MessagesRequest,
    PromptRequest,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolChoiceField,
    ToolResultBlock,
    ToolUseBlock,
)
from engine.api.sampling import AskedSampling
from engine.api.tools import NO_TOOLS, Toolset, assistant_turn, historic_call, result_turn, toolset
from engine.log import get_logger
from engine.text.tools import Tool, ToolChoice

log = get_logger(__name__)

BILLING = "x-anthropic-billing-header:"
MARKS = 4  # most cache breakpoints of one request

AnyBlock = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


@dataclass(frozen=True, slots=True)
class Placed:
    """A block and its place in the request."""

    block: AnyBlock
    place: str


@dataclass(frozen=True, slots=True)
class Turn:
    """Neighbours of one role, joined."""

    role: str
    blocks: list[Placed]
    place: str


def ask_of(request: MessagesRequest) -> Ask:
    """What the request wants.

    Raises:
        ApiError: its parts do not fit together, or it wants what this version lacks.
    """
    budget = request.thinking.budget_tokens if request.thinking is not None else None
    if budget is not None and request.max_tokens is not None and budget >= request.max_tokens:
        raise invalid(
            f"thinking.budget_tokens: {budget} leaves no room for an answer; it must be less than max_tokens,"
            f" {request.max_tokens}",
            code="invalid_value",
            param="thinking.budget_tokens",
        )
    _refuse_what_is_missing(request)
    sampling = AskedSampling(temperature=request.temperature, top_p=request.top_p, top_k=request.top_k)
    ask = _ask(request, sampling, output_limit=request.max_tokens, stops=tuple(request.stop_sequences or ()))
    form = request.form
    if form is not None and ask.continue_final_message:
        raise invalid(
            f"{form.field}: an answer that the request has begun cannot be held to a form; end with a user message",
            code="parameter_not_supported",
            param=form.field,
        )
    return dataclasses.replace(ask, form=form, tool_constraints=request.tool_constraints)


def count_ask_of(request: PromptRequest) -> Ask:
    """What decides the prompt; the rest plays no part in a count."""
    return _ask(request.model_copy(update={"tool_choice": None}), AskedSampling())


def _refuse_what_is_missing(request: MessagesRequest) -> None:
    thinking = request.thinking
    if thinking is not None and thinking.display == "omitted":
        raise invalid(
            "thinking.display: thoughts are always shown; send summarized or leave it out",
            code="thinking_display_not_supported",
            param="thinking.display",
        )


def _ask(
    request: PromptRequest, sampling: AskedSampling, *, output_limit: int | None = None, stops: tuple[str, ...] = ()
) -> Ask:
    _check_marks(request)
    turns = _joined(request)
    prefill = _is_prefill(turns)
    stated: str | None = request.output_config.effort if request.output_config is not None else None
    thinking, effort = _thinking(request, stated, prefill=prefill)
    return Ask(
        messages=list(_template_messages(turns)),
        sampling=sampling,
        continue_final_message=prefill,
        output_limit=output_limit,
        stops=stops,
        enable_thinking=thinking,
        reasoning_effort=effort,
        preserve_thinking=request.preserve_thinking,
        template_kwargs=request.chat_template_kwargs or {},
        tools=_tools(request),
        thinking_budget=request.thinking.budget_tokens if request.thinking is not None else None,
    )


def _thinking(request: PromptRequest, effort: str | None, *, prefill: bool) -> tuple[bool | None, str | None]:
    """`enable_thinking` and effort. Here an effort never contradicts `disabled`: it is about more than thinking."""
    kind = request.thinking.type if request.thinking is not None else None
    wanted = None if kind is None else kind != "disabled"
    if wanted and effort == "none":
        raise invalid(
            f'output_config.effort: "none" turns thinking off, and thinking.type "{kind}" turns it on; send one',
            code="conflicting_template_option",
            param="output_config.effort",
        )
    if prefill:
        if wanted or (request.chat_template_kwargs or {}).get("enable_thinking"):
            raise invalid(
                "messages: the last assistant turn can be continued only without thinking;"
                ' send thinking {"type": "disabled"}, or end with a user turn',
                code="assistant_prefill_not_supported",
                param="messages",
            )
        return False, None
    return wanted, None if wanted is False else effort


def _tools(request: PromptRequest) -> Toolset:
    declared = request.tools or []
    if not declared and request.tool_choice is None:
        return NO_TOOLS
    tools = [
        Tool(
            name=one.name,
            description=one.description,
            parameters=one.input_schema,
            strict=bool(one.strict),
            input_examples=one.input_examples,
        )
        for one in declared
    ]
    return toolset(tools, _choice(request.tool_choice), longest=LONGEST_NAME, schema_field="input_schema")


def _choice(choice: ToolChoiceField | None) -> ToolChoice:
    if choice is None:
        return ToolChoice.auto()
    several = not choice.disable_parallel_tool_use
    match choice.type:
        case "none":
            return ToolChoice.none()
        case "any":
            return ToolChoice.required(parallel=several)
        case "tool":
            return ToolChoice.named(choice.name or "", several=several)
        case "auto":
            return ToolChoice.auto(parallel=several)


def _joined(request: PromptRequest) -> list[Turn]:
    """The turns, system first, without the billing line."""
    single: list[Turn] = []
    if request.system is not None:
        single.append(Turn("system", _placed(request.system, "system"), "system"))
    for index, message in enumerate(request.messages):
        place = f"messages[{index}]"
        single.append(Turn(message.role, _placed(message.content, f"{place}.content"), place))
    if single[0].role == "system":
        _drop_billing(single[0].blocks)
        if not single[0].blocks:
            del single[0]
    joined: list[Turn] = []
    for role, group in groupby(single, key=lambda turn: turn.role):
        turns = list(group)
        joined.append(Turn(role, [placed for turn in turns for placed in turn.blocks], turns[0].place))
    return joined


def _placed(content: str | Sequence[Any], place: str) -> list[Placed]:
    if isinstance(content, str):
        return [Placed(TextBlock(type="text", text=content), place)]
    return [Placed(block, f"{place}[{index}]") for index, block in enumerate(content)]


def _drop_billing(blocks: list[Placed]) -> None:
    if not blocks or not isinstance(blocks[0].block, TextBlock) or not blocks[0].block.text.startswith(BILLING):
        return
    _say_dropped()
    rest = blocks[0].block.text.partition("\n")[2].lstrip("\n")
    blocks[:1] = [Placed(TextBlock(type="text", text=rest), blocks[0].place)] if rest else []


@functools.cache
def _say_dropped() -> None:
    log.info("billing_line_dropped", reason="it changes with every request, so no prefix could be reused")


def _is_prefill(turns: Sequence[Turn]) -> bool:
    """Whether the last turn is the beginning of the answer."""
    if not turns or turns[-1].role != "assistant":
        return False
    if any(isinstance(placed.block, ThinkingBlock | ToolUseBlock) for placed in turns[-1].blocks):
        raise invalid(
            f"{turns[-1].place}: an assistant turn at the end is continued, so it can hold only text; end with a user"
            " turn that has the results of its calls",
            code="assistant_prefill_not_supported",
            param=turns[-1].place,
        )
    return True


def _template_messages(turns: Sequence[Turn]) -> Iterator[dict[str, Any]]:
    """The turns as the template reads them.

    Raises:
        ApiError: a call without a result, a result without a call, or something between them.
    """
    calls: list[ToolUseBlock] = []  # that wait for results
    begun = False
    for turn in turns:
        if turn.role == "user":
            yield from _user(turn, calls, begun=begun)
            calls = []
        elif calls:
            raise _history(
                f"{turn.place}: the results of {_listed(calls)} must come first; a {turn.role} turn stands before them",
                turn.place,
            )
        elif turn.role == "system":
            yield {"role": "system", "content": _text(turn.blocks)}
            continue
        else:
            calls = [placed.block for placed in turn.blocks if isinstance(placed.block, ToolUseBlock)]
            _check_unique(turn)
            thoughts = [placed.block.thinking for placed in turn.blocks if isinstance(placed.block, ThinkingBlock)]
            yield assistant_turn(
                _text(turn.blocks),
                reasoning="".join(thoughts) if thoughts else None,
                calls=[historic_call(call.id, call.name, call.input) for call in calls],
            )
        begun = True


def _user(turn: Turn, calls: Sequence[ToolUseBlock], *, begun: bool) -> Iterator[dict[str, Any]]:
    results: dict[str, ToolResultBlock] = {}
    rest: list[Placed] = []
    for placed in turn.blocks:
        if not isinstance(placed.block, ToolResultBlock):
            rest.append(placed)
            continue
        identity = placed.block.tool_use_id
        if rest:
            raise _history(f"{placed.place}: results come before everything else in a user turn", placed.place)
        if identity in results:
            raise _history(f"{placed.place}: a second result of the call {identity[:80]!r}", placed.place)
        # A conversation that was cut may start with results.
        if begun and all(call.id != identity for call in calls):
            raise _history(
                f"{placed.place}: the turn before holds no tool_use block with the id {identity[:80]!r}", placed.place
            )
        results[identity] = placed.block
    missing = [call for call in calls if call.id not in results]
    if missing:
        raise _history(f"{turn.place}: there is no result of {_listed(missing)}", turn.place)
    ordered = [results[call.id] for call in calls] if calls else list(results.values())
    for result in ordered:
        yield result_turn(result.tool_use_id, _result_text(result), failed=bool(result.is_error))
    if rest or not results:
        yield {"role": "user", "content": _text(rest)}


def _check_unique(turn: Turn) -> None:
    seen: set[str] = set()
    for placed in turn.blocks:
        if isinstance(placed.block, ToolUseBlock):
            if placed.block.id in seen:
                raise _history(f"{placed.place}: a second call with the id {placed.block.id[:80]!r}", placed.place)
            seen.add(placed.block.id)


def _listed(calls: Sequence[ToolUseBlock]) -> str:
    shown = ", ".join(repr(call.id[:80]) for call in calls[:3])
    return f"the call {shown}" if len(calls) == 1 else f"the calls {shown}" + (" and more" if len(calls) > 3 else "")


def _history(message: str, place: str) -> Exception:
    return invalid(message, code="invalid_tool_history", param=place)


def _text(blocks: Sequence[Placed]) -> str:
    return "".join(placed.block.text for placed in blocks if isinstance(placed.block, TextBlock))


def _result_text(result: ToolResultBlock) -> str:
    if isinstance(result.content, list):
        return "".join(block.text for block in result.content if isinstance(block, TextBlock))
    return result.content or ""


def _check_marks(request: PromptRequest) -> None:
    """Breakpoints are hints, but one request has four at most, and the automatic one counts."""
    marks = [(mark, place) for mark, place in _marks(request) if mark is not None]
    own = request.cache_control
    if len(marks) + (own is not None) > MARKS:
        place = marks[MARKS][1] if len(marks) > MARKS else "cache_control"
        raise invalid(
            f"{place}: {len(marks) + (own is not None)} cache_control marks; a request has {MARKS} at most",
            code="too_many_cache_breakpoints",
            param=place,
        )
    last = request.messages[-1].content
    if own is not None and isinstance(last, list) and last:
        mark = getattr(last[-1], "cache_control", None)
        if mark is not None and (mark.ttl or "5m") != (own.ttl or "5m"):
            raise invalid(
                "cache_control: the last block is marked with another ttl; send one of them",
                code="conflicting_cache_ttl",
                param="cache_control",
            )


def _marks(request: PromptRequest) -> Iterator[tuple[CacheControl | None, str]]:
    for index, tool in enumerate(request.tools or ()):
        yield tool.cache_control, f"tools[{index}]"
    yield from _marks_of(request.system, "system")
    for index, message in enumerate(request.messages):
        yield from _marks_of(message.content, f"messages[{index}].content")


def _marks_of(content: str | Sequence[Any] | None, place: str) -> Iterator[tuple[CacheControl | None, str]]:
    for index, block in enumerate(content if isinstance(content, list) else ()):
        yield getattr(block, "cache_control", None), f"{place}[{index}]"
        if isinstance(block, ToolResultBlock):
            yield from _marks_of(block.content, f"{place}[{index}].content")
