"""The committed artifact is exactly what its sources make, and it works as the embedded model's front end."""

import hashlib
from pathlib import Path

import numpy as np

from engine.artifact import Artifact
from engine.text import Frontend
from tools.nano import checkpoint
from tools.nano.build import ARTIFACT, NAME, build
from tools.nano.config import LAYERS


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_rebuilding_gives_the_committed_bytes(tmp_path: Path) -> None:
    build(tmp_path / "made.ninfer")
    assert _digest(tmp_path / "made.ninfer") == _digest(ARTIFACT), "run python -m tools.nano.build and commit the file"
    assert [path.name for path in tmp_path.iterdir()] == ["made.ninfer"]
    assert ARTIFACT.stat().st_size <= 8_000_000


def test_the_artifact_holds_the_model() -> None:
    with Artifact.open(ARTIFACT) as artifact:
        assert artifact.name == NAME
        assert artifact.text_config.vocab_size == 8192
        assert artifact.text_config.num_hidden_layers == LAYERS
        for role in checkpoint.SIDE_FILES:
            assert artifact.resource("text", role) == (ARTIFACT.parent / role).read_bytes()
        source = {tensor.name: tensor for tensor in checkpoint.tensors()}
        norm = artifact.values("text/final_norm")
        assert np.array_equal(norm, source["model.norm.weight"].values(checkpoint.SEED))
        head = artifact.values("text/output_head").astype(np.float64)
        wanted = source["lm_head.weight"].values(checkpoint.SEED).astype(np.float64)
        assert np.linalg.norm(head - wanted) / np.linalg.norm(wanted) < 0.05
        assert artifact.shape("mtp/input_projection") == (checkpoint.HIDDEN, 2 * checkpoint.HIDDEN)


def test_the_front_end_loads_from_the_artifact() -> None:
    with Artifact.open(ARTIFACT) as artifact:
        frontend = Frontend.load(artifact)
    assert frontend.thinks
    assert frontend.token_count == 8192
    assert frontend.prepare([{"role": "user", "content": "Hello!"}]).thinking
