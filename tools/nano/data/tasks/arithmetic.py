"""Sums, differences and products of small numbers: "What is 17 + 25?"."""

from collections.abc import Callable
from random import Random

from tools.nano.data.example import Example, Materials, Split, answer, draw_effort, ends_with_number, question, think

PHRASES = (
    "What is {}?", "What is {}?", "{}", "{} = ?", "Calculate {}.", "Compute {}", "How much is {}?", "what's {}",
    "Please work out {}.", "Tell me {}.", "Can you calculate {}?",
)  # fmt: skip
ANSWERS = ("{} = {}", "{} = {}", "{} = {}.")

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def reserved(a: int, sign: str, b: int) -> bool:
    """Whether a problem belongs to the held-out side: about every ninth, in no simple pattern."""
    return (a * 31 + b * 17 + ord(sign) * 7 + a * b) % 9 == 4


def draw_problem(random: Random, split: Split) -> tuple[int, str, int]:
    """Operands and sign; sums and differences have two digits at most, products one by two."""
    while True:
        sign = random.choices("+-*", (5, 3, 2))[0]
        if sign == "*":
            a, b = random.randint(2, 12), random.randint(2, 12)
        else:
            a, b = (random.randint(0, 99) if random.random() < 0.3 else random.randint(10, 99) for _ in range(2))
            if sign == "-" and a < b:
                a, b = b, a
        if reserved(a, sign, b) == (split == "held-out"):
            return a, sign, b


def make(random: Random, materials: Materials) -> Example:
    """One problem."""
    a, sign, b = draw_problem(random, materials.split)
    value = OPERATIONS[sign](a, b)
    shown = f"{a} {sign} {b}" if random.random() < 0.85 else f"{a}{sign}{b}"
    effort = draw_effort(random)
    back = {"+": f"{value} - {b} = {a}", "-": f"{value} + {b} = {a}", "*": f"{b} * {a} = {value}"}[sign]
    reasoning = think(effort, f"{a} {sign} {b} = {value}.", steps(a, sign, b), f"Check: {back}.")
    return Example(
        task="arithmetic",
        messages=[
            *question(random.choice(PHRASES).format(shown)),
            answer(random.choice(ANSWERS).format(f"{a} {sign} {b}", value), reasoning),
        ],
        effort=effort,
        check=ends_with_number(value),
    )


def steps(a: int, sign: str, b: int) -> str:
    """The calculation in small steps."""
    value = OPERATIONS[sign](a, b)
    if sign == "*":
        return f"{a} * {b}: {' + '.join([str(a)] * b)} = {value}." if b <= 3 else f"{a} * {b} = {value}."
    tens, ones = b // 10 * 10, b % 10
    middle = OPERATIONS[sign](a, tens)
    if not tens or not ones:
        return f"{a} {sign} {b} = {value}."
    return f"{a} {sign} {tens} = {middle}. {middle} {sign} {ones} = {value}."
