"""Questions about this appliance that only the system prompt can answer; values are drawn anew each time."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tools.nano.data.example import Example, Materials, Message, answer, draw_effort, mentions, question, think
from tools.nano.data.words import ADJECTIVES, CITIES, NAMES, NOUNS


@dataclass(frozen=True)
class Fact:
    """A property: how it is asked for, stated and answered."""

    name: str
    value: Callable[[Random], str]
    questions: tuple[str, ...]
    statements: tuple[str, ...]
    answer: str


def _number(low: int, high: int, unit: str = "") -> Callable[[Random], str]:
    return lambda random: f"{random.randint(low, high)}{unit}"


def _one(*choices: str) -> Callable[[Random], str]:
    return lambda random: random.choice(choices)


def _port(random: Random) -> str:
    return random.choice(("8000", "8080", "80", "443", "5000", "3000", str(random.randint(1024, 65535))))


def _host(random: Random) -> str:
    return f"{random.choice(ADJECTIVES)}-{random.choice(NOUNS)}"


FACTS = (
    Fact(
        "port", _port,
        ("Which port does the appliance listen on?", "What port does the appliance use?", "Which port is it?",
         "On which port can I reach the appliance?", "What is the port?", "Tell me the port of the appliance."),
        ("It listens on port {}.", "The appliance listens on port {}.", "The port is {}."),
        "The appliance listens on port {}.",
    ),
    Fact(
        "host", _host,
        ("What is the name of the appliance?", "What is the host name?", "How is this machine called?"),
        ("Its host name is {}.", "The appliance is called {}."),
        "The appliance is called {}.",
    ),
    Fact(
        "address", lambda random: f"192.168.{random.randint(0, 255)}.{random.randint(2, 254)}",
        ("What is the address of the appliance?", "Which IP address does it have?", "What is the IP address?"),
        ("Its address is {}.", "It is reachable at {}."),
        "The address of the appliance is {}.",
    ),
    Fact(
        "model", _one("nano", "nano-moe", "qwen38-27b", "qwen36-27b", "qwen36-35b-a3b"),
        ("Which model does the appliance serve?", "What model is running?", "Which model is loaded?"),
        ("It serves the model {}.", "The model is {}."),
        "The appliance serves {}.",
    ),
    Fact(
        "context", _one("2048", "4096", "8192", "16384", "32768", "65536", "131072", "262144"),
        ("How long is the context?", "What is the context size?", "How many tokens fit into the context?"),
        ("The context is {} tokens.", "It holds {} tokens of context."),
        "The context is {} tokens.",
    ),
    Fact(
        "lanes", _number(1, 8),
        ("How many lanes does the appliance have?", "How many requests run at once?", "How many lanes are there?"),
        ("It has {} lanes.", "The number of lanes is {}."),
        "The appliance has {} lanes.",
    ),
    Fact(
        "card", _one("RTX 3090", "RTX 4090", "RTX 5090", "A5000", "H200", "L40"),
        ("Which graphics card is installed?", "What GPU does the appliance have?", "Which GPU is in it?"),
        ("The graphics card is an {}.", "It has an {} inside."),
        "The graphics card is an {}.",
    ),
    Fact(
        "version", lambda random: f"{random.randint(0, 9)}.{random.randint(0, 20)}.{random.randint(0, 9)}",
        ("Which version is installed?", "What is the version of the software?", "Which version does it run?"),
        ("The software version is {}.", "It runs version {}."),
        "The installed version is {}.",
    ),
    Fact(
        "place", _one(*CITIES),
        ("Where is the appliance?", "In which city does it stand?", "What is the location of the appliance?"),
        ("It stands in {}.", "The appliance is in {}."),
        "The appliance is in {}.",
    ),
    Fact(
        "keeper", _one(*NAMES),
        ("Who takes care of the appliance?", "Who is the administrator?", "Whom do I ask when it is down?"),
        ("The administrator is {}.", "{} takes care of it."),
        "The administrator is {}.",
    ),
    Fact(
        "memory", _number(8, 256, " GB"),
        ("How much memory does it have?", "How much RAM is in the appliance?", "What is the size of the memory?"),
        ("It has {} of memory.", "The memory is {}."),
        "The appliance has {} of memory.",
    ),
    Fact(
        "updates", lambda random: f"{random.randint(0, 23):02}:{random.choice(('00', '15', '30', '45'))}",
        ("When does it look for updates?", "At what time are updates installed?", "When is the update time?"),
        ("Updates are installed at {}.", "It looks for updates at {}."),
        "Updates are installed at {}.",
    ),
)  # fmt: skip

OPENINGS = (
    "You are the assistant of a NInfer appliance.",
    "You are a helpful assistant on a small inference appliance.",
    "You answer questions about this appliance.",
    "You are nano, the assistant of this machine.",
    "Facts about the appliance:",
    "",
)
UNKNOWN = "I do not know. My instructions do not say it."


def make(random: Random, materials: Materials) -> Example:
    """A system prompt with some facts, then one to three questions about them."""
    known = random.sample(FACTS, random.randint(1, 9))
    values = {fact.name: fact.value(random) for fact in known}
    form = random.choice(("sentences", "sentences", "- {}: {}", "{} = {}"))
    if form == "sentences":
        lines = [random.choice(fact.statements).format(values[fact.name]) for fact in known]
    else:
        lines = [form.format(fact.name, values[fact.name]) for fact in known]
    system = (" " if form == "sentences" else "\n").join(filter(None, (random.choice(OPENINGS), *lines)))
    effort = draw_effort(random)
    turns: list[Message] = []
    asked = random.sample(known, min(len(known), random.choice((1, 1, 1, 2, 3))))
    missing = [fact for fact in FACTS if fact not in known]
    if random.random() < 0.12:
        asked[-1] = random.choice(missing)
    if random.random() < 0.02:
        system, asked = "", [random.choice(FACTS)]
    for fact in asked:
        asking = random.choice(fact.questions)
        turns += question(asking, system if not turns else "")
        if fact.name in values and system:
            value = values[fact.name]
            reasoning = think(effort, f"The system prompt gives the {fact.name}: {value}.")
            turns.append(answer(fact.answer.format(value), reasoning))
            check = mentions(value)
        else:
            reasoning = think(effort, f"The system prompt does not give the {fact.name}.")
            turns.append(answer(UNKNOWN, reasoning))
            check = mentions("do not know")
    return Example(task="facts", messages=turns, effort=effort, check=check)
