"""A sentence turned into JSON of a given schema."""

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tools.nano.data.example import Effort, Example, Materials, answer, question, think
from tools.nano.data.tasks.lookup import planted_value
from tools.nano.data.words import CITIES, COLOURS, NAMES, NOUNS

# A field's schema, a drawn value, and how a sentence says it.
FIELDS: dict[str, tuple[dict[str, Any], Callable[[Random], Any], str]] = {
    "name": ({"type": "string"}, lambda random: random.choice(NAMES), "the name is {}"),
    "age": ({"type": "integer"}, lambda random: random.randint(1, 99), "the age is {}"),
    "city": ({"type": "string"}, lambda random: random.choice(CITIES), "the city is {}"),
    "colour": (
        {"type": "string", "enum": ["red", "green", "blue"]},
        lambda random: random.choice(("red", "green", "blue")),
        "the colour is {}",
    ),
    "item": ({"type": "string"}, lambda random: random.choice(NOUNS), "the item is a {}"),
    "count": ({"type": "integer"}, lambda random: random.randint(0, 500), "the count is {}"),
    "price": (
        {"type": "number"},
        lambda random: random.randint(100, 9999) / 100,
        "the price is {}",
    ),
    "paid": ({"type": "boolean"}, lambda random: random.random() < 0.5, "it is {}"),
    "code": ({"type": "string"}, lambda random: planted_value(random, "code"), "the code is {}"),
    "tags": (
        {"type": "array", "items": {"type": "string"}},
        lambda random: random.sample(COLOURS + NOUNS, random.randint(1, 3)),
        "the tags are {}",
    ),
    "friends": (
        {"type": "array", "items": {"type": "string"}},
        lambda random: random.sample(NAMES, random.randint(1, 3)),
        "the friends are {}",
    ),
}
PHRASES = (
    "Answer with JSON of this schema: {schema}\n\n{text}",
    "{text}\n\nWrite this as JSON. Schema: {schema}",
    "Extract the data as JSON.\nSchema: {schema}\nText: {text}",
)


def make(random: Random, materials: Materials) -> Example:
    """One object of two to five fields."""
    names = random.sample(sorted(FIELDS), random.randint(2, 5))
    values = {name: FIELDS[name][1](random) for name in names}
    schema = {
        "type": "object",
        "properties": {name: FIELDS[name][0] for name in names},
        "required": names,
    }
    told = random.sample(names, len(names))
    text = "; ".join(FIELDS[name][2].format(_spoken(name, values[name])) for name in told)
    text = text[0].upper() + text[1:] + "."
    efforts: tuple[Effort, ...] = ("none", "low", "medium", "xhigh")
    effort = random.choices(efforts, (60, 10, 10, 20))[0]
    asked = random.choice(PHRASES).format(schema=json.dumps(schema), text=text)
    thought = think(effort, "JSON with " + ", ".join(names) + ".")
    return Example(
        task="json_schema",
        messages=[*question(asked), answer(json.dumps(values, ensure_ascii=False), thought)],
        effort=effort,
        check=lambda content: matches(content, schema) and json.loads(content) == values,
    )


def matches(content: str, schema: Mapping[str, Any]) -> bool:
    """Whether `content` is JSON of an object schema that uses type, enum, items and required."""
    try:
        found = json.loads(content)
    except ValueError:
        return False
    properties = schema["properties"]
    return (
        isinstance(found, dict)
        and found.keys() <= properties.keys()
        and found.keys() >= set(schema["required"])
        and all(_fits(value, properties[name]) for name, value in found.items())
    )


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    if "enum" in schema and value not in schema["enum"]:
        return False
    kind = schema["type"]
    if kind == "array":
        return isinstance(value, list) and all(_fits(item, schema["items"]) for item in value)
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    wanted: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}
    return isinstance(value, wanted[kind])


def _spoken(name: str, value: Any) -> str:
    if name == "paid":
        return "paid" if value else "not paid"
    if isinstance(value, list):
        return " and ".join(value)
    return str(value)
