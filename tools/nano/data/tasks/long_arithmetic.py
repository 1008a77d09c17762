"""Sums and differences of three to five digits, worked out column by column while thinking."""

from random import Random

from tools.nano.data.example import Effort, Example, Materials, answer, ends_with_number, question, think
from tools.nano.data.tasks.arithmetic import ANSWERS, OPERATIONS, PHRASES


def make(random: Random, materials: Materials) -> Example:
    """One problem; thinking is nearly always on."""
    efforts: tuple[Effort, ...] = ("none", "low", "medium", "xhigh")
    effort = random.choices(efforts, (10, 20, 30, 40))[0]
    digits = random.randint(3, 5)
    a, b = random.randint(10 ** (digits - 1), 10**digits - 1), random.randint(10, 10**digits - 1)
    sign = random.choice("++-")
    if sign == "-" and a < b:
        a, b = b, a
    value = OPERATIONS[sign](a, b)
    work = columns(a, sign, b)
    back = f"{value} - {b} = {a}" if sign == "+" else f"{value} + {b} = {a}"
    reasoning = think(effort, work, f"Column by column, from the right. {work}", f"Check: {back}.")
    return Example(
        task="long_arithmetic",
        messages=[
            *question(random.choice(PHRASES).format(f"{a} {sign} {b}")),
            answer(random.choice(ANSWERS).format(f"{a} {sign} {b}", value), reasoning),
        ],
        effort=effort,
        check=ends_with_number(value),
    )


def columns(a: int, sign: str, b: int) -> str:
    """Digit by digit with carries (or borrows), then the result."""
    first, second = str(a)[::-1], str(b)[::-1]
    carry, parts = 0, []
    for place, digit in enumerate(first):
        x, y = int(digit), int(second[place]) if place < len(second) else 0
        total = x + y + carry if sign == "+" else x - y - carry
        written = total % 10
        after = int(total > 9 or total < 0)
        carried = f" {sign} {carry}" if carry else ""
        parts.append(f"{x} {sign} {y}{carried} = {total}" + (f", write {written}, carry {after}" if after else ""))
        carry = after
    if carry:
        parts.append("write 1")
    return f"{'; '.join(parts)}. So {a} {sign} {b} = {OPERATIONS[sign](a, b)}."
