"""Small stories with numbers in them."""

from random import Random

from tools.nano.data.example import Example, Materials, answer, draw_effort, ends_with_number, question, think
from tools.nano.data.words import NAMES, THINGS

GAINS = ("finds {} more", "buys {} more", "gets {} from a friend")
LOSSES = ("gives {} away", "loses {}", "sells {}")


def make(random: Random, materials: Materials) -> Example:
    """Somebody has things, gains and loses some, two or three times."""
    name, things = random.choice(NAMES), random.choice(THINGS)
    have = random.randint(5, 60)
    story, work, running = [f"{name} has {have} {things}."], [f"{name} starts with {have}."], have
    for _ in range(random.randint(1, 3)):
        if running > 4 and random.random() < 0.5:
            change = random.randint(1, min(running - 1, 40))
            story.append(f"{name} {random.choice(LOSSES).format(change)}.")
            work.append(f"{running} - {change} = {running - change}.")
            running -= change
        else:
            change = random.randint(1, 40)
            story.append(f"{name} {random.choice(GAINS).format(change)}.")
            work.append(f"{running} + {change} = {running + change}.")
            running += change
    effort = draw_effort(random)
    asked = random.choice(("How many {} does {} have now?", "How many {} are left with {}?")).format(things, name)
    reasoning = think(effort, " ".join(work[1:]), " ".join(work), f"So {name} has {running} {things}.")
    return Example(
        task="word_problems",
        messages=[*question(f"{' '.join(story)} {asked}"), answer(f"{name} has {running} {things}.", reasoning)],
        effort=effort,
        check=ends_with_number(running),
    )
