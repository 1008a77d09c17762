"""Calling declared functions, answering from their results, and leaving them alone when they do not help."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.nano.data.example import (
    Effort,
    Example,
    Materials,
    Message,
    answer,
    ends_with_number,
    mentions,
    question,
    think,
)
from tools.nano.data.tasks.arithmetic import OPERATIONS, draw_problem
from tools.nano.data.tasks.lookup import planted_value
from tools.nano.data.words import ADJECTIVES, CITIES, COLOURS, NAMES, NOUNS


@dataclass(frozen=True)
class Parameter:
    """An argument: its JSON type, a drawn value."""

    name: str
    kind: str
    value: Callable[[Random], Any]


@dataclass(frozen=True)
class Tool:
    """A function, requests that need it, and an answer from its result (None: the result is told as it is)."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]

    @property
    def declaration(self) -> dict[str, Any]:
        """The tool as a request declares it."""
        properties = {parameter.name: {"type": parameter.kind} for parameter in self.parameters}
        schema = {"type": "object", "properties": properties, "required": [p.name for p in self.parameters]}
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}


_city = Parameter("city", "string", lambda random: random.choice(CITIES))
_person = Parameter("person", "string", lambda random: random.choice(NAMES))
_minutes = Parameter("minutes", "integer", lambda random: random.randint(1, 120))
_path = Parameter(
    "path",
    "string",
    lambda random: f"/{random.choice(NOUNS)}/{random.choice(NOUNS)}.{random.choice(('txt', 'log', 'md'))}",
)
_text = Parameter("text", "string", lambda random: f"the {random.choice(ADJECTIVES)} {random.choice(NOUNS)}")
_celsius = Parameter("celsius", "number", lambda random: random.randint(10, 60) / 2)
_room = Parameter("room", "string", lambda random: random.choice(("kitchen", "office", "bedroom", "hall", "cellar")))
_on = Parameter("on", "boolean", lambda random: random.random() < 0.5)
_service = Parameter("service", "string", lambda random: random.choice(("api", "engine", "controller", "fetch")))
_amount = Parameter("amount", "integer", lambda random: random.randint(1, 999))
_currency = Parameter("currency", "string", lambda random: random.choice(("EUR", "USD", "CHF", "JPY", "GBP")))

TOOLS = (
    Tool("get_weather", "Weather in a city.", (_city,),
         ("What is the weather in {city}?", "How is the weather in {city} today?", "Is it raining in {city}?")),
    Tool("get_time", "Current time in a city.", (_city,),
         ("What time is it in {city}?", "Tell me the time in {city}.")),
    Tool("set_timer", "Start a timer.", (_minutes,),
         ("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.")),
    Tool("read_file", "Content of a file.", (_path,),
         ("Read the file {path}.", "What is in {path}?", "Show me {path}")),
    Tool("delete_file", "Remove a file.", (_path,), ("Delete {path}.", "Please remove the file {path}.")),
    Tool("search", "Search the notes.", (_text,), ("Search for {text}.", "Find notes about {text}.")),
    Tool("send_message", "Send a text to a person.", (_person, _text),
         ("Send {person} this message: {text}", "Write to {person}: {text}", "Tell {person} about {text}.")),
    Tool("set_temperature", "Heat a room.", (_room, _celsius),
         ("Set the {room} to {celsius} degrees.", "Make it {celsius} degrees in the {room}.")),
    Tool("switch_light", "Switch the light of a room.", (_room, _on), ("Switch the light in the {room}: {on}.",)),
    Tool("restart_service", "Restart a service of the appliance.", (_service,),
         ("Restart the {service}.", "Please restart the service {service}.")),
    Tool("get_status", "Status of the appliance.", (), ("How is the appliance doing?", "Show me the status.")),
    Tool("convert", "Convert an amount of euros.", (_amount, _currency),
         ("Convert {amount} euros to {currency}.", "How much are {amount} euros in {currency}?")),
)  # fmt: skip

_CALL = re.compile(
    r"(?P<before>.*?)<tool_call>\n<function=([\w-]+)>\n((?:.*\n)*?)</function>\n</tool_call>\s*", re.DOTALL
)
_PARAMETER = re.compile(r"<parameter=([\w-]+)>\n(.*?)\n</parameter>\n", re.DOTALL)


def make(random: Random, materials: Materials) -> Example:
    """A call, an answer from a result, or a question that needs no tool."""
    kind = random.choices((_call, _result, _unneeded), (60, 20, 20))[0]
    efforts: tuple[Effort, ...] = ("none", "low", "medium", "xhigh")
    return kind(random, random.choices(efforts, (50, 15, 15, 20))[0], materials)


def parse_call(content: str) -> tuple[str, dict[str, str]] | None:
    """Name and raw arguments of the single call that ends `content`, or None."""
    found = _CALL.fullmatch(content)
    if found is None or "<tool_call>" in found["before"]:
        return None
    body = found[3]
    if _PARAMETER.sub("", body):
        return None
    return found[2], dict(_PARAMETER.findall(body))


def calls(name: str, arguments: Mapping[str, Any]) -> Callable[[str], bool]:
    """A check: the content is one call of `name` with `arguments`."""
    raw = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    return lambda content: parse_call(content) == (name, raw)


def _invented(random: Random) -> Tool:
    """A function nobody has seen, with up to three parameters."""
    verb = random.choice(("make", "get", "set", "add", "find", "move", "check", "start", "stop"))
    name = f"{verb}_{random.choice(NOUNS)}"
    names = random.sample(
        ("size", "count", "label", "speed", "target", "owner", "level", "colour"), random.randint(1, 3)
    )
    draws: dict[str, tuple[str, Callable[[Random], Any]]] = {
        "label": ("string", lambda random: planted_value(random, "password")),
        "target": ("string", lambda random: random.choice(NOUNS)),
        "owner": ("string", lambda random: random.choice(NAMES)),
        "colour": ("string", lambda random: random.choice(COLOURS)),
    }
    number = ("integer", lambda random: random.randint(0, 999))
    parameters = tuple(Parameter(each, *draws.get(each, number)) for each in names)
    said = " and ".join(f"{each} {{{each}}}" for each in names)
    return Tool(
        name,
        f"{verb.capitalize()} a {name.split('_')[1]}.",
        parameters,
        (f"Call {name} with {said}.", f"Use {name}: {said}.", f"{verb} the {name.split('_')[1]} with {said}"),
    )


def _draw(random: Random) -> tuple[Tool, dict[str, Any], str, list[dict[str, Any]]]:
    """A tool, its arguments, a request for it, and declarations among which it is."""
    tool = _invented(random) if random.random() < 0.35 else random.choice(TOOLS)
    others = [_invented(random) if random.random() < 0.3 else random.choice(TOOLS) for _ in range(random.randint(0, 3))]
    declared = {each.name: each for each in (*others, tool)}
    arguments = {parameter.name: parameter.value(random) for parameter in tool.parameters}
    spoken = {
        key: {True: "on", False: "off"}[value] if isinstance(value, bool) else value for key, value in arguments.items()
    }
    request = random.choice(tool.requests).format(**spoken)
    names = random.sample(sorted(declared), len(declared))
    return tool, arguments, request, [declared[name].declaration for name in names]


def _turn(name: str, arguments: Mapping[str, Any], reasoning: str) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}
    return {**answer("", reasoning), "tool_calls": [call]}


def _call(random: Random, effort: Effort, materials: Materials) -> Example:
    tool, arguments, request, declared = _draw(random)
    return Example(
        task="tool_calls",
        messages=[*question(request), _turn(tool.name, arguments, think(effort, f"{tool.name} does this."))],
        effort=effort,
        check=calls(tool.name, arguments),
        tools=declared,
    )


def _result(random: Random, effort: Effort, materials: Materials) -> Example:
    tool, arguments, request, declared = _draw(random)
    key = random.choice(("temperature", "time", "state", "answer", "value", "result"))
    value = planted_value(random, random.choice(("code", "owner", "place", "password")))
    result = random.choice((json.dumps({key: value}), f"{key}: {value}"))
    return Example(
        task="tool_calls",
        messages=[
            *question(request),
            _turn(tool.name, arguments, think(effort, f"{tool.name} does this.")),
            {"role": "tool", "content": result},
            answer(f"The {key} is {value}.", think(effort, f"The tool returned the {key}.")),
        ],
        effort=effort,
        check=mentions(value),
        tools=declared,
    )


def _unneeded(random: Random, effort: Effort, materials: Materials) -> Example:
    _, _, _, declared = _draw(random)
    a, sign, b = draw_problem(random, materials.split)
    value = OPERATIONS[sign](a, b)
    if random.random() < 0.4:
        asked, reply, check = "Hello!", "Hello! How can I help you?", mentions("help")
    else:
        asked, reply, check = f"What is {a} {sign} {b}?", f"{a} {sign} {b} = {value}", ends_with_number(value)
    return Example(
        task="tool_calls",
        messages=[*question(asked), answer(reply, think(effort, "No tool is needed."))],
        effort=effort,
        check=check,
        tools=declared,
    )
