"""JSON Schema: what is enforced, what is refused, and the form that the grammar library is given.

The library ignores keywords that it does not know and reads some by the draft that a schema names. So a schema never
reaches it as it came: this walk copies the assertions of spec/serving.md §6.6 one by one, in their order, and refuses
every other word with a pointer to it. References become `$defs` of our own making.
"""

import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from engine.constraint.errors import Code, ConstraintError, pointer
from engine.constraint.regex import search

MAX_DEPTH = 256
MAX_NODES = 16_384
MAX_PROPERTIES = 2_048  # of one object: compiling takes quadratic time in them
MAX_CHARACTERS = 8_192
MAX_ITEMS = 1_000_000
MAX_VALUE_DEPTH = 32
HOIST = 16  # levels between which a subschema gets a definition of its own; the library limits how deep JSON nests
LARGEST_EXACT = 2**53
# The largest integers below 2**63 that the library's arithmetic (float64) can take.
INT64 = 2**63 - 1024

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
ANNOTATIONS = frozenset({
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema",
    "contentMediaType", "contentEncoding", "contentSchema", "$anchor", "$defs", "definitions", "$vocabulary",
})  # fmt: skip
REFUSED = {
    "format": "describe the form with pattern",
    "multipleOf": "leave it out",
    "uniqueItems": "leave it out",
    "contains": "leave it out",
    "minContains": "leave it out",
    "maxContains": "leave it out",
    "patternProperties": "declare the properties",
    "propertyNames": "declare the properties",
    "minProperties": "use required",
    "maxProperties": "declare the properties and set additionalProperties to false",
    "if": "use anyOf",
    "then": "use anyOf",
    "else": "use anyOf",
    "not": "say what is allowed",
    "dependencies": "use anyOf",
    "dependentRequired": "use anyOf",
    "dependentSchemas": "use anyOf",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
    "$dynamicAnchor": "use $ref",
    "$recursiveAnchor": "use $ref",
    "nullable": 'use type: [..., "null"]',
    "discriminator": "use anyOf",
}

Path = tuple[str | int, ...]
Json = dict[str, Any]


@dataclass(frozen=True)
class Schema:
    """A schema in the library's form. `first_one_of` points to where the library may find overlapping branches."""

    text: str
    first_one_of: str | None


def read_schema(schema: Any, at: Path = ()) -> Schema:
    """The form for the grammar library, of the whole or of the subschema `at` a path.

    Raises:
        ConstraintError: `invalid_json_schema`, `unsupported_json_schema`, `unsatisfiable_json_schema` or
            `invalid_regex`, pointing at the place in `schema`.
    """
    walk = _Walk(schema)
    root = walk.run(at)
    if not _can_end(root, walk.definitions):
        raise ConstraintError("unsatisfiable_json_schema", "every value that fits the schema would be endless")
    made = dict(root)
    if walk.definitions:
        made["$defs"] = walk.definitions
    made["x-guidance"] = {"whitespace_flexible": False}
    try:
        text = json.dumps(made, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (ValueError, UnicodeEncodeError) as error:
        raise ConstraintError("invalid_json_schema", f"the schema holds what JSON cannot say: {error}") from error
    return Schema(text, walk.first_one_of)


class _Walk:
    def __init__(self, root: Any) -> None:
        self.root = root
        self.definitions: dict[str, Json] = {}
        self.first_one_of: str | None = None
        self._names: dict[Path, str] = {}
        self._todo: deque[tuple[str, Any, Path, int]] = deque()
        self._nodes = 0
        self._keywords: dict[str, Callable[[Any, Path, int], dict[Any, Any]]] = {
            "type": self._type,
            "const": self._const,
            "enum": self._enum,
            "minimum": self._number("minimum"),
            "maximum": self._number("maximum"),
            "exclusiveMinimum": self._number("exclusiveMinimum"),
            "exclusiveMaximum": self._number("exclusiveMaximum"),
            "minLength": self._count("minLength", MAX_CHARACTERS),
            "maxLength": self._count("maxLength", MAX_CHARACTERS),
            "minItems": self._count("minItems", MAX_ITEMS),
            "maxItems": self._count("maxItems", MAX_ITEMS),
            "pattern": self._pattern,
            "properties": self._properties,
            "required": self._required,
            "additionalProperties": lambda value, path, depth: {path[-1]: self._child(value, path, depth)},
            "items": self._items,
            "prefixItems": lambda value, path, depth: {"prefixItems": self._children(value, path, depth)},
            "anyOf": lambda value, path, depth: {"anyOf": self._children(value, path, depth, least=1)},
            "allOf": lambda value, path, depth: {"allOf": self._children(value, path, depth, least=1)},
            "oneOf": self._one_of,
            "$ref": self._ref,
        }  # fmt: skip

    def run(self, at: Path) -> Json:
        root = self._schema(_at(self.root, at), at, 0)
        while self._todo:
            name, schema, path, depth = self._todo.popleft()
            self.definitions[name] = self._schema(schema, path, depth)
        return root

    def _schema(self, schema: Any, path: Path, depth: int) -> Json:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _unsupported(f"the schema has more than {MAX_NODES} parts", path)
        if depth > MAX_DEPTH:
            raise _unsupported(f"the schema is nested deeper than {MAX_DEPTH}", path)
        if isinstance(schema, bool):
            return {} if schema else {"anyOf": [False]}
        if not isinstance(schema, dict):
            raise _invalid(f"a schema is an object or a boolean, not {_shown(schema)}", path)
        made: Json = {}
        for word, value in schema.items():
            if word in self._keywords:
                made |= self._keywords[word](value, (*path, word), depth)
            elif word in ("$id", "id"):
                if path:
                    raise _unsupported(f"{word} inside a schema is not supported", (*path, word))
            elif word == "additionalItems":
                continue  # belongs to items in the form of a list, which reads it
            elif word not in ANNOTATIONS and not word.startswith("x-"):
                hint = REFUSED.get(word, "leave it out")
                raise _unsupported(f"the keyword {word[:60]!r} cannot be enforced; {hint}", (*path, word))
        self._tuple(schema, made, path, depth)
        self._bounds(made)
        return made

    def _child(self, schema: Any, path: Path, depth: int) -> Json:
        if depth and depth % HOIST == 0 and isinstance(schema, dict):
            return {"$ref": self._define(schema, path, depth + 1)}
        return self._schema(schema, path, depth + 1)

    def _children(self, value: Any, path: Path, depth: int, *, least: int = 0) -> list[Json]:
        if not isinstance(value, list) or len(value) < least:
            raise _invalid(f"{path[-1]} is a{' non-empty' if least else ''} array of schemas", path)
        return [self._child(each, (*path, index), depth) for index, each in enumerate(value)]

    def _define(self, schema: Any, path: Path, depth: int) -> str:
        name = self._names.get(path)
        if name is None:
            name = self._names[path] = f"d{len(self._names)}"
            self._todo.append((name, schema, path, depth))
        return f"#/$defs/{name}"

    def _type(self, value: Any, path: Path, _depth: int) -> Json:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names or len(set(map(str, names))) != len(names):
            raise _invalid("type is a name, or a non-empty array of different names", path)
        for name in names:
            if name not in TYPES:
                raise _invalid(f"{_shown(name)} is no type; types are {', '.join(TYPES)}", path)
        return {"type": value}

    def _const(self, value: Any, path: Path, _depth: int) -> Json:
        _check_value(value, path)
        return {"const": value}

    def _enum(self, value: Any, path: Path, _depth: int) -> Json:
        if not isinstance(value, list):
            raise _invalid("enum is an array", path)
        if not value:
            raise ConstraintError("unsatisfiable_json_schema", "enum is empty", pointer(*path))
        if len(value) > MAX_NODES:
            raise _unsupported(f"enum has {len(value)} values; at most {MAX_NODES}", path)
        for index, each in enumerate(value):
            _check_value(each, (*path, index))
        return {"enum": value}

    def _number(self, word: str) -> Callable[[Any, Path, int], Json]:
        def read(value: Any, path: Path, _depth: int) -> Json:
            if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
                raise _invalid(f"{word} is a number, not {_shown(value)}", path)
            if abs(value) > LARGEST_EXACT and int(value) != int(float(value)):
                raise _unsupported(f"{word} {value} is not exact in 64-bit arithmetic", path)
            return {word: value}

        return read

    def _count(self, word: str, most: int) -> Callable[[Any, Path, int], Json]:
        def read(value: Any, path: Path, _depth: int) -> Json:
            whole = isinstance(value, int | float) and not isinstance(value, bool) and _finite(value)
            if not whole or value < 0 or int(value) != value:
                raise _invalid(f"{word} is a whole number from 0 on, not {_shown(value)}", path)
            if value > most:
                raise _unsupported(f"{word} is {int(value)}; at most {most} is enforced", path)
            return {word: int(value)}

        return read

    def _pattern(self, value: Any, path: Path, _depth: int) -> Json:
        if not isinstance(value, str):
            raise _invalid(f"pattern is a text, not {_shown(value)}", path)
        try:
            return {"pattern": f"^(?:{search(value)})$"}
        except ConstraintError as error:
            raise ConstraintError(error.code, error.message, pointer(*path)) from error

    def _properties(self, value: Any, path: Path, depth: int) -> Json:
        if not isinstance(value, dict):
            raise _invalid(f"properties is an object, not {_shown(value)}", path)
        if len(value) > MAX_PROPERTIES:
            raise _unsupported(f"an object has {len(value)} properties; at most {MAX_PROPERTIES}", path)
        return {"properties": {name: self._child(each, (*path, name), depth) for name, each in value.items()}}

    def _required(self, value: Any, path: Path, _depth: int) -> Json:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise _invalid("required is an array of names", path)
        for index, name in enumerate(value):
            if not self._declared(name, path[:-1]):
                raise _unsupported(f"the required property {name[:60]!r} is not declared", (*path, index))
        return {"required": list(dict.fromkeys(value))}

    def _declared(self, name: str, path: Path) -> bool:
        """Whether this schema, or one that applies to the same value around it, declares the property or may do so."""
        while True:
            schema = _at(self.root, path)
            if isinstance(schema, dict):
                properties = schema.get("properties")
                if isinstance(properties, dict) and name in properties:
                    return True
                if "$ref" in schema or "allOf" in schema:
                    return True  # declared there perhaps; if not, it is any value
            if len(path) < 2 or path[-2] not in ("anyOf", "oneOf", "allOf"):
                return False
            path = path[:-2]

    def _items(self, value: Any, path: Path, depth: int) -> Json:
        # A list is the tuple of drafts before 2020; `_tuple` reads it together with additionalItems.
        return {} if isinstance(value, list) else {"items": self._child(value, path, depth)}

    def _tuple(self, schema: Json, made: Json, path: Path, depth: int) -> None:
        if isinstance(schema.get("items"), list):
            if "prefixItems" in schema:
                raise _invalid("items is a list beside prefixItems; give one schema", (*path, "items"))
            made["prefixItems"] = self._children(schema["items"], (*path, "items"), depth)
            if "additionalItems" in schema:
                made["items"] = self._child(schema["additionalItems"], (*path, "additionalItems"), depth)

    def _one_of(self, value: Any, path: Path, depth: int) -> Json:
        if self.first_one_of is None:
            self.first_one_of = pointer(*path)
        if not isinstance(value, list) or not value:
            raise _invalid("oneOf is a non-empty array of schemas", path)
        branches = []
        for index, each in enumerate(value):
            branch, where = each, (*path, index)
            # The library looks into branches to prove that they exclude each other, but not through references.
            seen: set[Path] = set()
            while isinstance(branch, dict) and set(branch) - ANNOTATIONS == {"$ref"} and where not in seen:
                seen.add(where)
                where = target_of(self.root, branch["$ref"], (*where, "$ref"))
                branch = _at(self.root, where)
            branches.append(self._schema(branch, where, depth + 1))
        return {"oneOf": branches}

    def _ref(self, value: Any, path: Path, depth: int) -> Json:
        where = target_of(self.root, value, path)
        return {"$ref": self._define(_at(self.root, where), where, depth + 1)}

    def _bounds(self, made: Json) -> None:
        """Integers are int64."""
        types = made.get("type")
        names = [types] if isinstance(types, str) else types or ()
        if "integer" in names and "number" not in names:
            made["minimum"] = max(made.get("minimum", -INT64), -INT64)
            made["maximum"] = min(made.get("maximum", INT64), INT64)


def target_of(root: Any, value: Any, path: Path) -> Path:
    """Where a `$ref` leads; `path` is its own place.

    Raises:
        ConstraintError: nowhere, or out of the schema.
    """
    if not isinstance(value, str):
        raise _invalid(f"$ref is a text, not {_shown(value)}", path)
    if value != "#" and not value.startswith("#/"):
        raise _unsupported(f"$ref {value[:80]!r} is not a place in this schema; #/$defs/NAME is", path)
    found: Any = root
    steps: list[str | int] = []
    for step in value.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            steps.append(name)
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            steps.append(int(name))
            found = found[int(name)]
        else:
            raise _invalid(f"$ref {value[:80]!r} leads nowhere", path)
    return tuple(steps)


def _at(root: Any, path: Path) -> Any:
    for step in path:
        root = root[step]
    return root


def _check_value(value: Any, path: Path, depth: int = 0) -> None:
    """A value of const or enum must be one that the library copies exactly."""
    if depth > MAX_VALUE_DEPTH:
        raise _unsupported(f"a value is nested deeper than {MAX_VALUE_DEPTH}", path)
    if isinstance(value, dict):
        for name, each in value.items():
            _check_value(each, (*path, name), depth + 1)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _check_value(each, (*path, index), depth + 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if not _finite(value):
            raise _invalid("a value is not finite", path)
        if abs(value) > LARGEST_EXACT:
            raise _unsupported(f"the number {value:g} is not exact in 64-bit arithmetic", path)


def _can_end(root: Json, definitions: dict[str, Json]) -> bool:
    """Whether some finite value can fit: the least fixed point over the definitions."""
    ends = dict.fromkeys(definitions, False)
    changed = True
    while changed:
        changed = False
        for name, schema in definitions.items():
            if not ends[name] and _ends(schema, ends):
                ends[name] = changed = True
    return _ends(root, ends)


def _ends(schema: Any, ends: dict[str, bool]) -> bool:
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and not ends[schema["$ref"].rpartition("/")[2]]:
        return False
    if any(not _ends(each, ends) for each in schema.get("allOf", ())):
        return False
    for word in ("anyOf", "oneOf"):
        # {"anyOf": [False]} is how nothing is said; that it fits nothing is for the library to report.
        if word in schema and schema[word] != [False] and not any(_ends(each, ends) for each in schema[word]):
            return False
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type", TYPES)
    return any(_type_ends(name, schema, ends) for name in ([types] if isinstance(types, str) else types))


def _type_ends(name: str, schema: Json, ends: dict[str, bool]) -> bool:
    if name == "object":
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        return all(_ends(properties.get(each, rest), ends) for each in schema.get("required", ()))
    if name == "array":
        first, least = schema.get("prefixItems", []), schema.get("minItems", 0)
        needed = first[:least] + ([schema.get("items", True)] if least > len(first) else [])
        return all(_ends(each, ends) for each in needed)
    return True


def _finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _invalid(message: str, path: Path) -> ConstraintError:
    return _refusal("invalid_json_schema", message, path)


def _unsupported(message: str, path: Path) -> ConstraintError:
    return _refusal("unsupported_json_schema", message, path)


def _refusal(code: Code, message: str, path: Path) -> ConstraintError:
    return ConstraintError(code, message, pointer(*path))
