"""What the form of an answer must be, in no protocol's terms (spec/serving.md §6.5, §6.6)."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from engine.api.errors import ApiError, invalid, unavailable
from engine.api.tools import LONGEST_PARAM, Toolset
from engine.constraint.constraint import Constraint, grammar, json_object, json_schema, matching, one_of
from engine.constraint.errors import ConstraintError
from engine.constraint.tools import tool_grammar
from engine.protocol import ConstraintReport, Finish

Kind = Literal["json_object", "json_schema", "grammar", "regex", "choice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What the answer's content must look like. `field` is the place of `value` in the request."""

    kind: Kind
    value: Any = None
    field: str

    def read(self) -> Constraint:
        """Slow for large values.

        Raises:
            ConstraintError: it cannot be enforced.
        """
        match self.kind:
            case "json_object":
                return json_object()
            case "json_schema":
                return json_schema(self.value)
            case "grammar":
                return grammar(self.value)
            case "regex":
                return matching(self.value)
            case "choice":
                return one_of(self.value)


def constraint_of(
    form: Form | None,
    tools: Toolset,
    *,
    tool_constraints: Literal["basic", "auto"] | None = None,
    stops: bool = False,
    ignore_eos: bool = False,
) -> Constraint | None:
    """The grammar that an answer must follow, or None for free text.

    Raises:
        ApiError: it cannot be enforced, or contradicts something else that the request asks for.
    """
    free = [name for name, asked in (("stop", stops), ("ignore_eos", ignore_eos)) if asked]
    active = bool(tools.tools) and tools.choice.maximum != 0
    if form is None:
        if not active or (free and tool_constraints is None and not _binding(tools)):
            return None
        if tool_constraints == "auto" and not _binding(tools):
            return None
    elif active and form.kind in ("grammar", "regex", "choice"):
        raise invalid(
            f"{form.field} constrains the whole answer, and the request has tools; set tool_choice to none",
            code="parameter_not_supported",
            param=form.field,
        )
    if free:
        raise invalid(
            f"{free[0]} cannot be combined with a constraint on the answer",
            code="parameter_not_supported",
            param=free[0],
        )
    try:
        content = None if form is None else dataclasses.replace(form.read(), field=form.field)
    except ConstraintError as error:
        assert form is not None  # it was read
        raise refusal(error, form.field) from error
    if not active:
        return content
    try:
        made = tool_grammar(tools.tools, tools.choice, content=content)
        return dataclasses.replace(made, field="tools" if form is None else form.field)
    except ConstraintError as error:
        raise refusal(error, "tools") from error


def _binding(tools: Toolset) -> bool:
    """Whether something must be enforced whatever the request prefers."""
    choice = tools.choice
    return choice.forced or choice.maximum is not None or any(tool.strict for tool in tools.tools)


def refusal(error: ConstraintError, field: str) -> ApiError:
    """What the client is told. `field` is the request field that the error's pointer begins at."""
    if error.code == "constraint_failed":
        return unavailable(error.message)
    param = field + error.pointer
    return invalid(f"{param[:LONGEST_PARAM]}: {error.message}", code=error.code, param=param[:LONGEST_PARAM])


def lane_error(code: str, message: str) -> ApiError:
    """What the client is told when an answer could not go on under its constraint."""
    if code == "constraint_failed":
        return ApiError(500, f"the constraint could not be applied: {message}", kind="internal_error", code=code)
    return invalid(f"the answer could not be brought to an end under its constraint: {message}", code=code)


def observation(report: ConstraintReport, finish: Finish | None, *, content: bool, calls: bool) -> dict[str, Any]:
    """The `constraint` object of an answer."""
    return {
        "branch": "tools" if calls else "content" if content else "undecided",
        "complete": report.complete,
        "terminated": report.complete and finish == "stop_id",
        "cache": report.cache or None,
        "mask_positions": report.mask_positions,
        "mask_upload_bytes": report.mask_upload_bytes,
        "timings_seconds": {
            "prepare": round(report.prepare_seconds, 6),
            "mask": round(report.mask_seconds, 6),
            "matcher": round(report.matcher_seconds, 6),
        },
    }
