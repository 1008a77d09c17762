"""A checkpoint converted to an artifact and opened again is the same model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.artifact import Artifact
from engine.artifact.convert.pipeline import Request, convert
from engine.model import MtpLayer, TextModel
from engine.model.weights import MtpWeights, TextWeights
from tests.artifact.convert.checkpoints import write_resources
from tests.model.conftest import CPU, Oracle
from tests.model.lanes import prefill
from tests.model.oracle import TOKEN_COUNT, relative_distance

PROMPT = torch.randint(TOKEN_COUNT, (65,), generator=torch.Generator().manual_seed(61))


@pytest.fixture(scope="module")
def artifact(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(oracle.family)
    oracle.model.save_pretrained(folder)  # type: ignore[operator]  # for config.json; the tensors follow, MTP's too
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in oracle.state.items()}
    save_file(tensors, folder / "model.safetensors")
    write_resources(folder, vision=False)
    out = folder / "model.ninfer"
    convert(Request(model=folder, recipe="bf16", out=out, components=("text", "mtp")))
    return out


def flat(weights: object) -> list[torch.Tensor]:
    """Every tensor of nested weights, in order."""
    if isinstance(weights, torch.Tensor):
        return [weights]
    parts = weights if isinstance(weights, tuple) else vars(weights).values()
    return [tensor for part in parts for tensor in flat(part)]


def equal(ours: TextWeights | MtpWeights, theirs: TextWeights | MtpWeights) -> bool:
    return all(torch.equal(a, b) for a, b in zip(flat(ours), flat(theirs), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_converted_artifacts_load_bit_for_bit(oracle: Oracle, artifact: Path, dtype: torch.dtype) -> None:
    with Artifact.open(artifact) as source:
        assert source.text_config == oracle.config
        model = TextModel.load(source, source.text_config, device=CPU, dtype=dtype, token_count=TOKEN_COUNT)
        mtp = MtpLayer.load(source, model)
        names = set(source.parameters())
    assert equal(model.weights, oracle.ours(dtype).weights)
    if dtype == torch.float32:
        assert equal(mtp.weights, oracle.mtp().weights)
        assert relative_distance(prefill(model, PROMPT), oracle.logits(PROMPT)) < 1e-4
    assert {"text/token_embedding", "text/layers/1/attention/gate", "mtp/input_projection"} <= names


def test_a_parameter_bound_in_pieces_comes_flat(oracle: Oracle) -> None:
    class Flat:
        def values(self, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
            return oracle.source.values(name).reshape(-1)

    model = TextModel.load(Flat(), oracle.config, device=CPU, dtype=torch.float32, token_count=TOKEN_COUNT)
    assert equal(model.weights, oracle.ours().weights)
