"""JSON without the liberties that parsers disagree about. Standard library only."""

import json
import math
import re
from typing import Any

from engine.artifact.layouts import MAX_U64
from engine.exits import ArtifactError

MAX_VALUES = 4_000_000
"""Most JSON values read, which bounds memory. The largest published directory has about 400,000."""


def parse_json(text: bytes) -> Any:
    """Parse the JSON text of a directory.

    Raises:
        ArtifactError: it is not UTF-8 or not JSON, names a member twice, or holds a number or string beyond our types.
        RecursionError: values are nested too deeply.
    """
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > MAX_VALUES:
        raise ArtifactError(f"directory: up to {values} JSON values; this program reads at most {MAX_VALUES}")
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise ArtifactError(f"directory: byte {error.start} is not UTF-8") from None
    try:
        value = json.loads(
            decoded,
            object_pairs_hook=_unique_members,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
    except ValueError as error:
        raise ArtifactError(f"directory: {error}") from None
    if re.search(r"\\u[dD][89a-fA-F]", decoded):
        _refuse_lone_surrogates(value)
    return value


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"member {short(twice)} appears twice in one object")
    return members


def _no_constant(literal: str) -> float:
    raise ValueError(f"{literal} is not a JSON number")


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise ValueError(f"{short(literal)} is beyond a 64-bit float")
    return value


def _integer(literal: str) -> int:
    if len(literal) > 20 or abs(value := int(literal)) > MAX_U64:
        raise ValueError(f"{short(literal)} is beyond 64 bits")
    return value


def _refuse_lone_surrogates(value: Any) -> None:
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ArtifactError(f"directory: {short(value)} holds half a surrogate pair") from None
        case list():
            for item in value:
                _refuse_lone_surrogates(item)
        case dict():
            for name, item in value.items():
                _refuse_lone_surrogates(name)
                _refuse_lone_surrogates(item)


def short(value: object) -> str:
    """A value as printable ASCII for a message, cut when it is long."""
    text = ascii(value)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"
