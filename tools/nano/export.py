"""Makes the artifacts of trained models: `python -m tools.nano.export nano build/nano/trained/nano/checkpoint`.

The quantised artifact, `etc/nano/NAME.ninfer`, is what the appliance serves; its pin in
`etc/models.toml` is brought up to date. The bfloat16 master beside it, `etc/nano/master/NAME.ninfer` in parts, loses
nothing and is what every later artifact and comparison is made from.
"""

import argparse
import contextlib
import hashlib
import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.artifact.convert.pipeline import Request, convert
from engine.artifact.writer import FILE_LIMIT
from tools.nano.tokenizer import FOLDER
from tools.nano.weights import CONFIG, add_side_files, replace_text

MODELS_TOML = FOLDER.parent / "models.toml"
RECIPES = {"nano": "nano", "nano-moe": "qwen3_6_35b_a3b"}
PART_BYTES = 12_000_000
COMPONENTS = ("text", "mtp")


def export(name: str, checkpoint: Path, *, etc: Path = FOLDER, catalog: Path = MODELS_TOML) -> dict[str, Path]:
    """Convert `checkpoint` to the quantised artifact and the master, and pin the former. Returns both paths.

    The same weights give the same bytes: artifact ids are digests of name, recipe and weights.

    Raises:
        NInferError: the checkpoint does not convert.
    """
    made = {
        "artifact": _convert(name, checkpoint, RECIPES[name], etc / f"{name}.ninfer", limit=FILE_LIMIT),
        "master": _convert(name, checkpoint, "bf16", etc / "master" / f"{name}.ninfer", limit=PART_BYTES),
    }
    write_pin(name, made["artifact"], catalog)
    return made


def write_pin(name: str, artifact: Path, catalog: Path = MODELS_TOML) -> None:
    """Bring the pin of an embedded model up to date in the catalog file."""
    replace_text(catalog, pin(catalog.read_text(encoding="utf-8"), name, artifact, catalog.parent))


def _convert(name: str, checkpoint: Path, recipe: str, out: Path, limit: int) -> Path:
    """Convert in a scratch folder, then replace every file of the artifact at `out`."""
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = checkpoint.absolute()
    with TemporaryDirectory(dir=out.parent) as scratch, contextlib.chdir(scratch):
        # The artifact records the folder it was made from, so that folder is called by the model's name.
        folder = Path(name)
        shutil.copytree(checkpoint, folder)
        add_side_files(folder, FOLDER)
        request = Request(
            model=folder,
            recipe=recipe,
            out=Path(out.name),
            components=COMPONENTS,
            name=name,
            artifact_id=artifact_id(name, recipe, folder),
            max_file_bytes=limit,
        )
        convert(request)
        made = artifact_files(Path(out.name))
        for path in made:
            path.replace(out.parent / path.name)
        for stale in {path.name for path in artifact_files(out)} - {path.name for path in made}:
            (out.parent / stale).unlink()
    return out


def artifact_id(name: str, recipe: str, folder: Path) -> bytes:
    """Sixteen bytes that change whenever the artifact's content does."""
    digest = hashlib.sha256(f"{name} {recipe}".encode())
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.digest()[:16]


def artifact_files(path: Path) -> list[Path]:
    """The first file of an artifact and its further parts, as far as they exist."""
    return sorted(found for found in path.parent.glob(f"{path.name}*") if not found.name.endswith(".json"))


def pin(catalog: str, name: str, artifact: Path, base: Path) -> str:
    """The text of the catalog with the table of an embedded model brought up to date, or added at the end.

    Raises:
        ValueError: the table exists and is not that of an embedded model.
    """
    body = artifact.read_bytes()
    table = (
        f"[models.{name}]\n"
        f'path = "{artifact.relative_to(base).as_posix()}"\n'
        f"bytes = {len(body):_}\n"
        f'sha256 = "{hashlib.sha256(body).hexdigest()}"\n'
        "format_version = 3\n"
    )
    found = re.search(rf"^\[models\.{re.escape(name)}\]\n(?:[^\n\[]+\n)*", catalog, re.MULTILINE)
    if found is not None:
        if "path =" not in found[0]:
            raise ValueError(f"models.{name} is not an embedded model; its pin is not ours to change")
        return catalog[: found.start()] + table + catalog[found.end() :]
    # Behind the last embedded model, so that the file stays in its order.
    last = list(re.finditer(r"^\[models\.[^\]]+\]\npath = .*\n(?:[^\n\[]+\n)*", catalog, re.MULTILINE))
    place = last[-1].end() if last else len(catalog)
    return catalog[:place] + "\n" + table + catalog[place:]


def main(words: list[str] | None = None) -> int:
    """Export one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(RECIPES))
    parser.add_argument("checkpoint", type=Path, help=f"folder with {CONFIG} and weights, made by tools.nano.train")
    args = parser.parse_args(words)
    for what, path in export(args.model, args.checkpoint).items():
        print(f"{what}: {', '.join(f'{part.name} ({part.stat().st_size:,} bytes)' for part in artifact_files(path))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
