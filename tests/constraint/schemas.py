"""Random small schemas that some finite value fits."""

from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "name", "é\n", 'q"\\')
VALUES: tuple[Any, ...] = (None, True, 0, -3, 2.5, "", 'é\n"', [], [1, {"k": "v"}], {"b": None, "a": 1})


def _bounded(kind: str, least: str, most: str) -> Any:
    return lambda low, more: {"type": kind, least: low, most: low + more}


_whole = _bounded("integer", "minimum", "maximum")
_real = _bounded("number", "minimum", "maximum")
_text = _bounded("string", "minLength", "maxLength")
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": ["integer", "null"], "minimum": -20, "exclusiveMaximum": 1000}),
    st.builds(_whole, st.integers(-99, 99), st.integers(0, 300)),
    st.builds(_real, st.sampled_from([-1.5, 0, 0.25, 3]), st.sampled_from([0.5, 2, 100])),
    st.builds(_text, st.integers(0, 3), st.integers(0, 4)),
    st.sampled_from([
        {"type": "string", "pattern": "^[a-c]{1,4}$"},
        {"type": "string", "pattern": "x", "maxLength": 5},
        {"type": "string", "pattern": "^ab|c$", "maxLength": 6},
        {"type": "string", "pattern": r"^\d+\s?\w$", "maxLength": 8},
    ]),
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.sampled_from(["x", 12, [True], {"k": {}}]).map(lambda value: {"const": value}),
)  # fmt: skip


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    @st.composite
    def make(draw: st.DrawFn) -> dict[str, Any]:
        properties = draw(st.dictionaries(st.sampled_from(NAMES), inner, max_size=3))
        schema: dict[str, Any] = {"type": "object", "title": "x", "properties": properties}
        schema["required"] = [name for name in properties if draw(st.booleans())]
        schema["additionalProperties"] = False
        return schema

    return make()


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    @st.composite
    def make(draw: st.DrawFn) -> dict[str, Any]:
        least = draw(st.integers(0, 2))
        schema: dict[str, Any] = {"type": "array", "minItems": least, "maxItems": least + draw(st.integers(0, 2))}
        if draw(st.booleans()):
            schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
        if draw(st.booleans()):
            schema["items"] = draw(inner)
        else:
            schema["items"] = {"type": "boolean"}
        return schema

    return make()


def _tagged(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def branch(tag: str, schema: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"kind": {"const": tag}, "value": schema},
            "required": ["kind", "value"],
            "additionalProperties": False,
        }

    return st.tuples(inner, inner).map(lambda two: {"oneOf": [branch("one", two[0]), branch("two", two[1])]})


def _shared(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def make(schema: Any) -> dict[str, Any]:
        # Recursive, and it can end.
        node = {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
                "required": ["next"], "additionalProperties": False}  # fmt: skip
        return {"anyOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/node"}], "$defs": {"leaf": schema, "node": node}}

    return inner.map(make)


def schemas() -> st.SearchStrategy[Any]:
    """Schemas within what is enforced."""
    nested = st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            _objects(inner),
            _arrays(inner),
            _tagged(inner),
            st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
            inner.map(lambda schema: {"allOf": [schema, {}]}),
        ),
        max_leaves=6,
    )
    return nested | _shared(LEAVES)
