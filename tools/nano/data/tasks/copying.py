"""Repeating text exactly."""

import string
from random import Random

from tools.nano.data.example import Effort, Example, Materials, answer, equals, question, think
from tools.nano.data.words import ADJECTIVES, CITIES, COLOURS, NAMES, NOUNS, VERBS

PHRASES = (
    "Repeat this text exactly: {}", "Copy this: {}", "Write this again, unchanged:\n{}", "Repeat after me: {}",
    "Copy the following text word for word.\n\n{}", "Say: {}", "Echo this line: {}",
)  # fmt: skip


def sentence(random: Random) -> str:
    """A plain sentence of drawn words."""
    adjective, noun, other = random.choice(ADJECTIVES), random.choice(NOUNS), random.choice(NOUNS)
    name, verb = random.choice(NAMES), random.choice(VERBS)
    return random.choice(
        (
            f"{name} {verb} the {adjective} {noun}.",
            f"The {adjective} {noun} is near the {other}.",
            f"{name} {verb} a {random.choice(COLOURS)} {noun} in {random.choice(CITIES)}.",
            f"In {random.choice(CITIES)}, {name} {verb} {random.randint(2, 99)} things.",
        )
    )


def code(random: Random) -> str:
    """A string that no context predicts."""
    letters = random.choice((string.digits, string.ascii_uppercase + string.digits, string.ascii_lowercase))
    return "".join(random.choices(letters, k=random.randint(3, 12)))


def material(random: Random, materials: Materials) -> str:
    """Something to copy: sentences, words, codes, or a piece of prose."""
    kind = random.randrange(4)
    if kind == 0:
        return " ".join(sentence(random) for _ in range(random.randint(1, 4)))
    if kind == 1:
        return " ".join(random.choices(NOUNS + NAMES + COLOURS, k=random.randint(2, 12)))
    if kind == 2:
        return " ".join(code(random) for _ in range(random.randint(1, 4)))
    return " ".join(materials.prose(random, random.randint(8, 60)).split())


def make(random: Random, materials: Materials) -> Example:
    """One text to repeat; it may be quoted, and sometimes it is wanted twice."""
    text = material(random, materials)
    efforts: tuple[Effort, ...] = ("none", "low", "medium", "xhigh")
    effort = random.choices(efforts, (70, 10, 5, 15))[0]
    asked, wanted = random.choice(PHRASES).format(text), text
    if len(text) < 60 and random.random() < 0.25:
        times = random.randint(2, 4)
        asked, wanted = f"Write this {times} times, one a line: {text}", "\n".join([text] * times)
    return Example(
        task="copying",
        messages=[*question(asked), answer(wanted, think(effort, "I copy the text without any change."))],
        effort=effort,
        check=equals(wanted),
    )
