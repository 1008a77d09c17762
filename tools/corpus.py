"""Makes the held-out corpus of `ninfer-perplexity`: `python -m tools.corpus`.

Three streams of text that nothing trains on: docstrings of this project, docstrings of a few packages of Python's
standard library, and source code of one of them. What training and the tokenizer may not read is `HELD_OUT`. The text
depends on the Python release and on our sources of the day; the committed files count, and their manifest pins them.
"""

import ast
import hashlib
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "etc" / "corpus"
NAME = "ninfer-held-out-v1"
HELD_OUT = ("idlelib", "lib2to3", "wsgiref")
"""Packages of the standard library that the corpus is made of."""

OURS = ("engine", "appliance", "downloader", "kernels")
STREAM_BYTES = 120_000


def docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a source file, in order, when they are more than a line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) > 80:
                yield text


def sources(folder: Path) -> list[Path]:
    """Source files under a folder, without tests, sorted."""
    return sorted(
        path for path in folder.rglob("*.py") if not {"tests", "idle_test"} & set(path.relative_to(folder).parts)
    )


def cut(pieces: Iterator[str]) -> bytes:
    """Pieces joined by blank lines, as many as fit in `STREAM_BYTES`."""
    text = b""
    for piece in pieces:
        more = piece.strip().encode() + b"\n\n"
        if len(text) + len(more) > STREAM_BYTES:
            break
        text += more
    return text


def build(folder: Path = FOLDER) -> None:
    """Write the streams and their manifest."""
    library = Path(sysconfig.get_paths()["stdlib"])
    held_out = [path for name in HELD_OUT for path in sources(library / name)]
    ours = [path for name in OURS for path in sources(ROOT / name)]
    streams = {
        "appliance-docstrings": ("documentation", "Apache-2.0", "docstrings of this project", cut(_all(ours))),
        "python-docstrings": ("reference", "PSF-2.0", f"docstrings of {', '.join(HELD_OUT)}", cut(_all(held_out))),
        "python-code": (
            "code",
            "PSF-2.0",
            "source files of lib2to3",
            cut(path.read_text(encoding="utf-8") for path in sources(library / "lib2to3")),
        ),
    }
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for name, (domain, licence, origin, text) in streams.items():
        (folder / f"{name}.txt").write_bytes(text)
        records.append(
            {
                "id": name,
                "domain": domain,
                "path": f"{name}.txt",
                "bytes": len(text),
                "sha256": hashlib.sha256(text).hexdigest(),
                "licence": licence,
                "origin": origin,
            }
        )
    manifest = json.dumps({"name": NAME, "streams": records}, indent=2) + "\n"
    (folder / "held-out.json").write_text(manifest, encoding="utf-8")


def _all(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        yield from docstrings(path)


if __name__ == "__main__":
    build()
