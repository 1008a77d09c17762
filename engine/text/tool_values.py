"""Text of a parameter to a JSON value, guided by the declared schema (spec/serving.md §6.5, spec/cases.md A8)."""

import json
from collections.abc import Mapping
from typing import Any, Final

_PRIMITIVES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_MOST_SCHEMAS = 256  # looked at for one argument; a schema that refers to itself has no end

Types = frozenset[str] | None
"""JSON types that a schema allows; None: it does not say."""


class _Omitted:
    pass


OMITTED: Final = _Omitted()
"""The argument is left out: an empty value where no string is allowed."""


def allowed_types(parameters: Mapping[str, Any], key: str) -> Types:
    """Types that the schema `parameters` allows for the argument `key`.

    Follows local `$ref`, unites `anyOf` and `oneOf`, intersects `allOf`, and reads `enum` and `const` where there is
    no `type`. Whatever is not understood allows everything: a wrong schema is no reason to lose a call.
    """
    declared: Mapping[str, Any] | None = parameters
    for _ in range(_MOST_SCHEMAS):
        if declared is None or not isinstance(reference := declared.get("$ref"), str):
            break
        declared = _referred(parameters, reference)
    if declared is None:
        return None
    properties = declared.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        schema = properties[key]
    else:
        schema = declared.get("additionalProperties")
    return _Reader(parameters).types(schema)


def read_value(text: str, types: Types) -> Any:
    """The JSON value that `text` stands for, or `OMITTED`.

    Where a string is allowed the text itself is the value. Otherwise JSON that parses keeps its type, even a wrong
    one, and other text stays a string, so that the client can complain.
    """
    if types is not None and "string" in types:
        return text
    if types is not None:
        trimmed = text.strip()
        if not trimmed:
            return OMITTED
        if "boolean" in types and trimmed.lower() in ("true", "false"):
            return trimmed.lower() == "true"
    try:
        value = parse_json(text)
    except ValueError:
        return text
    if types is not None and "integer" in types and "number" not in types and type(value) is float:
        return int(value) if value.is_integer() else value  # 5.0 is an integer in JSON Schema
    return value


def parse_json(text: str) -> Any:
    """Strict JSON: no NaN, nothing infinite, only text that UTF-8 can carry. Raises ValueError."""
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if "\\u" in text:
            write_json(value).encode()  # half a surrogate pair
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def write_json(value: Any) -> str:
    """Compact JSON, members in their order, nothing escaped needlessly."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is too large")
    return value


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = _MOST_SCHEMAS

    def types(self, schema: Any) -> Types:
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0:
            return None
        found: list[Types] = []
        if isinstance(reference := schema.get("$ref"), str):
            found.append(self.types(_referred(self._root, reference)))
        if "type" in schema:
            named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            known = all(isinstance(name, str) and name in _PRIMITIVES for name in named)
            found.append(frozenset(named) if named and known else None)
        elif isinstance(schema.get("enum"), list):
            found.append(frozenset(map(_type_of, schema["enum"])))
        elif "const" in schema:
            found.append(frozenset({_type_of(schema["const"])}))
        for word in ("anyOf", "oneOf"):
            if isinstance(members := schema.get(word), list) and members:
                found.append(_union([self.types(member) for member in members]))
        if isinstance(members := schema.get("allOf"), list):
            found += [self.types(member) for member in members]
        said = [types for types in found if types is not None]
        return frozenset.intersection(*said) or None if said else None


def _union(members: list[Types]) -> Types:
    said = [types for types in members if types is not None]
    return frozenset().union(*said) if len(said) == len(members) else None


def _referred(root: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    if reference != "#" and not reference.startswith("#/"):
        return None
    place: Any = root
    for step in reference.split("/")[1:]:
        if not isinstance(place, Mapping):
            return None
        place = place.get(step.replace("~1", "/").replace("~0", "~"))
    return place if isinstance(place, Mapping) else None


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")
