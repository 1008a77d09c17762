"""Small random checkpoints and the artifacts made of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.artifact.convert.pipeline import Request, convert
from tests.artifact.convert.checkpoints import write_checkpoint


@dataclass(frozen=True)
class Small:
    """A checkpoint folder and its bf16 artifact."""

    folder: Path
    artifact: Path

    def convert(self, recipe: str, **sources: Path) -> Path:
        """Another artifact of the same checkpoint."""
        out = self.folder / f"{recipe}{''.join(sources)}.ninfer"
        if not out.exists():
            convert(Request(model=self.folder, recipe=recipe, out=out, sources=sources))
        return out


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Small]:
    """A small model of family dense or moe; every expert of the latter is always routed to."""
    made: dict[str, Small] = {}

    def get(family: str) -> Small:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            write_checkpoint(folder, family)
            if family == "moe":
                config = json.loads((folder / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps(config | {"num_experts_per_tok": 4}))
            out = folder / "bf16.ninfer"
            convert(Request(model=folder, recipe="bf16", out=out, name=family))
            made[family] = Small(folder, out)
        return made[family]

    return get
