"""Finding a value that was planted anywhere in a long text."""

import re
from random import Random

from tools.nano.data.example import (
    Effort,
    Example,
    Maker,
    Materials,
    Message,
    answer,
    mentions,
    question,
    think,
)
from tools.nano.data.words import ADJECTIVES, CITIES, COLOURS, NAMES, NOUNS

ATTRIBUTES = ("code", "number", "price", "owner", "weight", "place", "colour", "password", "age", "height")
STATEMENTS = (
    "The {attribute} of the {thing} is {value}.",
    "The {attribute} of the {thing} is {value}.",
    "Remember: the {attribute} of the {thing} is {value}.",
    "Note that the {thing} has the {attribute} {value}.",
)
QUESTIONS = (
    "What is the {attribute} of the {thing}?",
    "What is the {attribute} of the {thing}?",
    "Tell me the {attribute} of the {thing}.",
    "Which {attribute} does the {thing} have?",
)
LEADS = (
    "Read this text.\n\n{}\n\n{}",
    "{}\n\n{}",
    "Here is a text:\n{}\n\nQuestion: {}",
    "{}\n\nAnswer from the text: {}",
)


def planted_value(random: Random, attribute: str) -> str:
    """A value that suits the attribute."""
    if attribute == "owner":
        return random.choice(NAMES)
    if attribute == "place":
        return random.choice(CITIES)
    if attribute == "colour":
        return random.choice(COLOURS)
    if attribute == "password":
        return f"{random.choice(ADJECTIVES)}-{random.choice(NOUNS)}"
    return str(random.randint(10, 10 ** random.randint(2, 6) - 1))


def maker(name: str, least: int, most: int, *, questions: int = 8) -> Maker:
    """A maker of conversations over a text of `least` to `most` tokens, with up to `questions` questions.

    Training asks many questions about one text, because reading it is what costs. The last answer is the checked one.
    """

    def make(random: Random, materials: Materials) -> Example:
        # Short texts are as frequent as long ones on a logarithmic scale.
        tokens = round(least * (most / least) ** random.random())
        count = random.randint(1, 4) + tokens // 300
        things = {f"{random.choice(ADJECTIVES + COLOURS)} {random.choice(NOUNS)}" for _ in range(count)}
        planted: dict[tuple[str, str], str] = {}
        for thing in sorted(things):
            for attribute in random.sample(ATTRIBUTES, random.choice((1, 1, 2))):
                planted[attribute, thing] = planted_value(random, attribute)
        text = plant(
            random,
            materials.prose(random, max(tokens - 16 * len(planted) - 60, 0)),
            [
                random.choice(STATEMENTS).format(attribute=attribute, thing=thing, value=value)
                for (attribute, thing), value in planted.items()
            ],
        )
        efforts: tuple[Effort, ...] = ("none", "low", "medium", "xhigh")
        effort = random.choices(efforts, (55, 15, 10, 20))[0]
        asked = random.sample(sorted(planted), min(len(planted), questions))
        turns: list[Message] = []
        for attribute, thing in asked:
            value = planted[attribute, thing]
            words = random.choice(QUESTIONS).format(attribute=attribute, thing=thing)
            turns += question(random.choice(LEADS).format(text, words) if not turns else words)
            reply = f"The {attribute} of the {thing} is {value}."
            turns.append(answer(reply, think(effort, f"I look for the {thing}: {value}.")))
        return Example(task=name, messages=turns, effort=effort, check=mentions(value))

    return make


def plant(random: Random, text: str, statements: list[str]) -> str:
    """Put statements at sentence ends of `text`, anywhere."""
    ends = [found.end() for found in re.finditer(r"[.!?](?=\s)|\n\n", text)] or [len(text)]
    places = sorted(random.choices(ends, k=len(statements)))
    pieces: list[str] = []
    begin = 0
    for place, statement in zip(places, random.sample(statements, len(statements)), strict=True):
        pieces += [text[begin:place], " " if text[begin:place].strip() or pieces else "", statement]
        begin = place
    return "".join((*pieces, text[begin:])).strip()
