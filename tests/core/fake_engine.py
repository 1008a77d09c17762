"""The engine process with a fake model: `python -m tests.core.fake_engine --config FILE.json`.

The artifact is a JSON file with the fields of `FakeModel`, and `payload_bytes`, `parameters`, `config` and
`load_seconds` of the artifact that it stands for.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from engine.core.boot import run
from engine.core.config import read_config
from engine.core.source import ModelSource, Progress
from engine.exits import ArtifactError
from engine.log import configure
from engine.rounds import Model
from tests.core.harness import TINY_VOCABULARY
from tests.core.tiny import tiny_config
from tests.rounds.fake_model import FakeModel


@contextmanager
def open_fake(path: Path) -> Iterator[ModelSource]:
    """The fake artifact at `path`."""
    try:
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: {error}") from error
    payload = fields.pop("payload_bytes", 1000)
    parameters = fields.pop("parameters", 1000)
    load_seconds = fields.pop("load_seconds", 0.0)
    config = tiny_config(**fields.pop("config", {}))

    def load(device: torch.device, dtype: torch.dtype, progress: Progress) -> Model:
        assert device.type == "cpu"
        assert dtype == torch.float32
        for step in range(1, 5):
            time.sleep(load_seconds / 4)
            progress(parameters * step // 4)
        return FakeModel(**fields)

    yield ModelSource("fake", "f" * 32, payload, parameters, config, TINY_VOCABULARY, load)


if __name__ == "__main__":
    config = read_config(Path(sys.argv[2]))
    configure("engine", config.log_level)
    sys.exit(run(config, open_fake))
