"""The fit calculator: one HTML page that needs nothing else, made from the numbers of `engine.plan`."""

import json
from pathlib import Path

from tools.calculator.numbers import numbers

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "fit.html"
_PARTS = Path(__file__).resolve().parent


def page() -> str:
    """The whole page: template, style, numbers and scripts in one text."""
    text = (_PARTS / "page.html").read_text(encoding="utf-8")
    parts = {name: (_PARTS / name).read_text(encoding="utf-8") for name in ("page.css", "planner.js", "page.js")}
    parts["numbers.json"] = json.dumps(numbers(), separators=(",", ":"))
    for name, content in parts.items():
        text = text.replace(f"{{{{{name}}}}}", content.strip())
    return text
