"""The real text front end over the tokenizer and template of nano, without weights."""

import functools
from pathlib import Path

from engine.api.model import ServedModel
from engine.exits import ArtifactError
from engine.text import Frontend

FOLDER = Path(__file__).parents[2] / "etc" / "nano"
NAME = "nano"
FINGERPRINT = "0123456789abcdef0123456789abcdef"


class Resources:
    """Reads what an artifact would hold from the folder that nano is made of, or from another like it."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder

    def resource(self, component: str, role: str, /) -> bytes:
        try:
            return (self.folder / role).read_bytes()
        except FileNotFoundError as error:
            raise ArtifactError(f"no {role} in {component}") from error


@functools.cache
def frontend() -> Frontend:
    return Frontend.load(Resources())


def load(artifact: Path, template: Path | None, folder: Path = FOLDER) -> ServedModel:
    """What `engine.api.model.load_model` does, for a file that only has to exist; the text front end is in `folder`."""
    text = None if template is None else template.read_text(encoding="utf-8")
    created = int(artifact.stat().st_mtime)
    return ServedModel(Frontend.load(Resources(folder), text), NAME, FINGERPRINT, created)
