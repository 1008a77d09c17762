"""`python -m tools.ladder_plot`: draw docs/ladder.svg, what an RTX 3090 serves as others take memory from it."""

from pathlib import Path

from appliance import sizing
from appliance.machine import Card, Machine
from appliance.settings import from_resolved
from engine.log import configure
from engine.options import resolve
from engine.plan import GIB, MIB, NoPlanError, Plan

OUT = Path(__file__).resolve().parents[1] / "docs" / "ladder.svg"
CARD_BYTES, DRIVER_BYTES = 24_576 * MIB, 310 * MIB
MODELS = {"qwen38-27b": "#2563eb", "qwen36-27b": "#16a34a", "qwen36-35b-a3b": "#d97706"}
STEPS_A_GIB, MOST_GIB = 16, 6
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 84, 20, 54, 52
TOKENS = (0, 65_536, 98_304, 131_072, 196_608, 262_144)


def machine(taken: int) -> Machine:
    """A box with one RTX 3090 of which others hold `taken` bytes."""
    card = Card(
        index=0,
        name="NVIDIA GeForce RTX 3090",
        total_bytes=CARD_BYTES,
        reserved_bytes=DRIVER_BYTES,
        used_bytes=taken,
        free_bytes=CARD_BYTES - DRIVER_BYTES - taken,
        compute_capability=(8, 6),
    )
    return Machine(
        cards=(card,),
        pci_cards=("0000:01:00.0",),
        driver="580.95.05",
        cpu_count=8,
        host_total_bytes=64 * GIB,
        host_available_bytes=60 * GIB,
        disk_free_bytes=200 * GIB,
    )


def plan(model: str, taken: int) -> Plan | None:
    """The tuned profile's plan, or None when nothing fits."""
    box = from_resolved(resolve({"model": model}, {}))
    try:
        return sizing.make_plan(box, machine(taken), supported=None)
    except NoPlanError:
        return None


def x(gib: float) -> float:
    """Horizontal place of an amount of memory."""
    return LEFT + gib / MOST_GIB * (WIDTH - LEFT - RIGHT)


def y(tokens: int) -> float:
    """Vertical place of a context."""
    return HEIGHT - BOTTOM - tokens / TOKENS[-1] * (HEIGHT - TOP - BOTTOM)


def steps(model: str) -> list[tuple[float, Plan | None]]:
    """(GiB taken, plan) in small steps."""
    amounts = [step / STEPS_A_GIB for step in range(MOST_GIB * STEPS_A_GIB + 1)]
    return [(amount, plan(model, round(amount * GIB))) for amount in amounts]


def svg() -> str:
    """The whole picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">Context served by one RTX 3090, tuned profile (planned)</text>',
    ]
    for tokens in TOKENS:
        parts.append(
            f'<path d="M{LEFT} {y(tokens):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{y(tokens) + 4:.1f}" text-anchor="end">{tokens:,}</text>'
        )
    for gib in range(MOST_GIB + 1):
        parts.append(f'<text x="{x(gib):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{gib}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">'
        "GiB of the card held by others</text>"
    )
    for index, (model, colour) in enumerate(MODELS.items()):
        parts.append(_curve(model, colour, offset=2 * index))
        top = TOP + 18 + index * 20
        parts.append(
            f'<rect x="{x(4.2):.0f}" y="{top}" width="22" height="4" fill="{colour}"/>'
            f'<text x="{x(4.2) + 30:.0f}" y="{top + 6}">{model}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _curve(model: str, colour: str, offset: int) -> str:
    """Steps of one model down to where nothing fits any more."""
    path = ""
    for gib, found in steps(model):
        height = y(found.max_context if found is not None else 0) - offset
        path += f"{'H' if path else 'M'}{x(gib):.1f}{'V' if path else ' '}{height:.1f}"
        if found is None:
            break
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


if __name__ == "__main__":
    configure("ladder-plot", "warning")
    OUT.write_text(svg(), encoding="utf-8")
