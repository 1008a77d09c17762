"""Pieces that the request schemas of every protocol are made of."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

LARGEST_COUNT = 2**31 - 1

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

NO_LOGPROBS = "log-probabilities are not returned; leave the field out"


def real(minimum: float, maximum: float) -> Any:
    """A finite number in a closed range; no strings, no booleans."""
    return Field(strict=True, ge=minimum, le=maximum, allow_inf_nan=False)


def whole(minimum: int, maximum: int) -> Any:
    """A whole number in a closed range; no strings, no booleans."""
    return Field(strict=True, ge=minimum, le=maximum)


def refuse(code: str, message: str) -> PydanticCustomError:
    """The error of a field that asks for what this version lacks."""
    return PydanticCustomError(code, "{text}", {"text": message})


def only(neutral: Callable[[Any], bool], code: str, message: str) -> AfterValidator:
    """Accept null and neutral values; refuse the rest with `code`."""

    def check(value: Any) -> Any:
        if value is None or neutral(value):
            return value
        raise refuse(code, message)

    return AfterValidator(check)


def never(code: str, message: str) -> AfterValidator:
    """Accept nothing but null."""
    return only(lambda _: False, code, message)


def one_of(*accepted: Any) -> Callable[[Any], bool]:
    """Whether a value is one of these."""
    return lambda value: value in accepted
