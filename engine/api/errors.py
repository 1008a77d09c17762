"""Errors that a client sees: one exception, rendered in the shape of the protocol it speaks (spec/serving.md §4)."""

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

RETRY_AFTER = 2


class ApiError(Exception):
    """An answer other than success. `retry_after` is in seconds."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.code, self.param, self.retry_after = code, param, retry_after

    def openai(self) -> dict[str, Any]:
        """The OpenAI error object (spec/serving.md §4.1)."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def anthropic_status(self) -> int:
        """The status under `/v1/messages` (spec/serving.md §4.2)."""
        if self.code == "server_overloaded" or self.status == 429:
            return 529
        return 504 if self.code in ("request_queue_timeout", "media_fetch_timeout") else self.status

    def anthropic(self, request_id: str) -> dict[str, Any]:
        """The Anthropic error object (spec/serving.md §4.2); without code and param, the message names the field."""
        status = self.anthropic_status
        kind = _ANTHROPIC.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}, "request_id": request_id}


_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    504: "timeout_error",
    529: "overloaded_error",
}


def invalid(message: str, *, code: str, param: str | None = None) -> ApiError:
    """A request that must be changed before it can succeed."""
    return ApiError(400, message, code=code, param=param)


def overloaded(capacity: int) -> ApiError:
    """Every lane and every waiting place is taken."""
    return ApiError(
        429,
        f"the server is busy: {capacity} requests are running or waiting, which is all it admits; try again later",
        kind="rate_limit_error",
        code="server_overloaded",
        retry_after=RETRY_AFTER,
    )


def queue_timeout(milliseconds: int) -> ApiError:
    """The request waited longer for a lane than `--pending-timeout-ms` allows."""
    return ApiError(
        503,
        f"no lane became free within {milliseconds} ms (--pending-timeout-ms); try again later",
        kind="server_error",
        code="request_queue_timeout",
        retry_after=RETRY_AFTER,
    )


def unavailable(message: str) -> ApiError:
    """The engine cannot take or finish this request."""
    return ApiError(503, message, kind="server_error", code="service_unavailable", retry_after=RETRY_AFTER)


def context_length(prompt: int, limit: int) -> ApiError:
    """The prepared prompt does not fit."""
    return invalid(
        f"the prompt has {prompt} tokens; the context of this server is {limit} tokens (--max-context)",
        code="context_length_exceeded",
        param="messages",
    )


def internal() -> ApiError:
    """Something unexpected; what it was is in the log, never in the answer."""
    return ApiError(500, "the server failed on this request; its log says why", kind="internal_error")


def from_validation(error: ValidationError, body: bytes) -> ApiError:
    """The first thing pydantic found wrong in `body`, with the path of the field as `param`."""
    details = error.errors(include_url=False, include_context=False)
    first = details[0]
    if first["type"] == "json_invalid":
        return invalid(f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json")
    if not first["loc"]:
        return invalid("the body must be a JSON object", code="invalid_type")
    param = _path(first, from_json(body))
    return invalid(f"{param}: {first['msg']}{_shown(first)}", code=_code(first["type"]), param=param)


# pydantic's own error types become two codes; our custom ones are the code already.
_TYPES = ("_type", "_parsing")
_VALUES = frozenset({
    "missing", "literal_error", "finite_number", "greater_than_equal", "greater_than", "less_than_equal", "less_than",
    "too_long", "too_short", "string_too_long", "string_too_short", "string_pattern_mismatch", "value_error",
    "union_tag_invalid", "union_tag_not_found",
})  # fmt: skip


def _code(kind: str) -> str:
    if kind == "extra_forbidden":
        return "unknown_parameter"
    if kind in _VALUES:
        return "invalid_value"
    return "invalid_type" if kind.endswith(_TYPES) else kind


def _path(detail: ErrorDetails, value: Any) -> str:
    """`messages[0].content`: the location without the union branches that pydantic puts between the fields."""
    path = ""
    for position, step in enumerate(detail["loc"]):
        last = position == len(detail["loc"]) - 1
        if isinstance(step, int):
            path += f"[{step}]"
            value = value[step] if isinstance(value, list) and step < len(value) else None
        elif isinstance(value, dict) and (step in value or (last and detail["type"] == "missing")):
            path += f".{step}" if path else step
            value = value.get(step)
    return path


def _shown(detail: ErrorDetails) -> str:
    given = detail["input"]
    if detail["type"] == "missing" or isinstance(given, dict | list):
        return ""
    text = repr(given)
    return f" (got {text if len(text) <= 60 else text[:57] + '...'})"
