"""Small changes to a text or a list."""

from random import Random

from tools.nano.data.example import Effort, Example, Materials, answer, equals, question, think
from tools.nano.data.tasks.copying import sentence
from tools.nano.data.words import ADJECTIVES, CITIES, COLOURS, NAMES, NOUNS


def make(random: Random, materials: Materials) -> Example:
    """One change."""
    efforts: tuple[Effort, ...] = ("none", "low", "medium", "xhigh")
    effort = random.choices(efforts, (60, 15, 10, 15))[0]
    asked, wanted, thought = random.choice((_replace, _remove, _case, _order, _pick, _join))(random)
    return Example(
        task="editing",
        messages=[*question(asked), answer(wanted, think(effort, thought))],
        effort=effort,
        check=equals(wanted),
    )


def _replace(random: Random) -> tuple[str, str, str]:
    text = " ".join(sentence(random) for _ in range(random.randint(1, 3)))
    words = [word for word in text.replace(".", "").replace(",", "").split() if word.isalpha() and len(word) > 2]
    old = random.choice(words)
    new = random.choice(NAMES if old[0].isupper() else random.choice((NOUNS, ADJECTIVES, COLOURS)))
    changed = " ".join(part.replace(old, new) if part.strip(".,") == old else part for part in text.split(" "))
    asked = random.choice(
        ("Replace {old} with {new}: {text}", "Change the word {old} to {new} in this text: {text}")
    ).format(old=old, new=new, text=text)
    return asked, changed, f"Every {old} becomes {new}."


def _remove(random: Random) -> tuple[str, str, str]:
    words = random.sample(NOUNS + COLOURS, random.randint(3, 9))
    gone = random.choice(words)
    return (
        f"Remove {gone} from this list: {', '.join(words)}",
        ", ".join(word for word in words if word != gone),
        f"I leave out {gone}.",
    )


def _case(random: Random) -> tuple[str, str, str]:
    words = " ".join(random.sample(NOUNS + COLOURS + ADJECTIVES, random.randint(1, 4)))
    if random.random() < 0.5:
        return f"Write in capital letters: {words}", words.upper(), "Every letter becomes a capital."
    return f"Write in small letters: {words.upper()}", words, "Every letter becomes small."


def _order(random: Random) -> tuple[str, str, str]:
    kind = random.randrange(3)
    if kind == 0:
        numbers = random.sample(range(100), random.randint(3, 6))
        shown = ", ".join(map(str, numbers))
        return f"Sort these numbers: {shown}", ", ".join(map(str, sorted(numbers))), "From the smallest to the largest."
    words = random.sample(NOUNS + CITIES, random.randint(3, 6))
    if kind == 1:
        return f"Reverse this list: {', '.join(words)}", ", ".join(words[::-1]), "The last one comes first."
    words.sort(key=str.lower)
    mixed = random.sample(words, len(words))
    return f"Sort by the alphabet: {', '.join(mixed)}", ", ".join(words), "I sort by the first letters."


def _pick(random: Random) -> tuple[str, str, str]:
    words = random.sample(NOUNS + NAMES, random.randint(3, 7))
    ordinals = ("first", "second", "third")
    place = random.randrange(4)
    ordinal, wanted = ("last", words[-1]) if place == 3 else (ordinals[place], words[place])
    return f"What is the {ordinal} word of this list: {', '.join(words)}?", wanted, f"The {ordinal} word is {wanted}."


def _join(random: Random) -> tuple[str, str, str]:
    words = random.sample(NOUNS + NAMES + COLOURS, random.randint(2, 8))
    if random.random() < 0.5:
        return f"Write one word a line: {' '.join(words)}", "\n".join(words), "Each word gets a line."
    return "Join these lines with commas:\n" + "\n".join(words), ", ".join(words), "Commas between the words."
