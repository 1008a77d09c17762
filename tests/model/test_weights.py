"""Loading: names, shapes, dtypes, progress, reserved rows; and that the two norm kinds are where they belong."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.exits import ArtifactError
from engine.model import MtpLayer, TextModel
from engine.model.weights import AttentionWeights, GatedDeltaNetWeights, to_torch
from tests.model.conftest import CPU, Oracle
from tests.model.lanes import prefill
from tests.model.oracle import TOKEN_COUNT, VOCABULARY, relative_distance

PROMPT = torch.randint(TOKEN_COUNT, (20,), generator=torch.Generator().manual_seed(51))


class Recording:
    """A source that remembers what was asked, and may answer with other values."""

    def __init__(self, oracle: Oracle, **replaced: npt.NDArray[Any]) -> None:
        self.oracle, self.replaced = oracle, replaced
        self.names: list[str] = []

    def values(self, name: str) -> npt.NDArray[Any]:
        self.names.append(name)
        return self.replaced.get(name, self.oracle.source.values(name))


class AsBfloat16:
    """The same parameters as an artifact stores them: bfloat16 except the decay parameters."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def values(self, name: str) -> npt.NDArray[Any]:
        values = self.oracle.source.values(name)
        return values if name.endswith(("a_log", "dt_bias")) else values.astype(ml_dtypes.bfloat16)


def load(source: Any, oracle: Oracle, **options: Any) -> TextModel:
    settings = {"device": CPU, "dtype": torch.float32, "token_count": TOKEN_COUNT, **options}
    return TextModel.load(source, oracle.config, **settings)


def test_every_parameter_is_read_once_and_counted(oracle: Oracle) -> None:
    source, steps = Recording(oracle), list[tuple[int, int]]()
    model = load(source, oracle, progress=lambda done, total: steps.append((done, total)))
    count = len(source.names)
    assert len(set(source.names)) == count
    assert steps == [(done, count) for done in range(1, count + 1)]
    feed_forward = 3 if oracle.family == "dense" else 5 + 3 * 16
    assert count == 3 + 4 * (2 + feed_forward) + 2 * 7 + 2 * 11

    steps.clear()
    source.names.clear()
    MtpLayer.load(source, model, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(done, 4 + 2 + feed_forward + 7) for done in range(1, len(source.names) + 1)]
    assert all(name.startswith("mtp/") for name in source.names)


def test_bfloat16_parameters_give_the_same_model(oracle: Oracle) -> None:
    model = load(AsBfloat16(oracle), oracle)
    assert torch.equal(prefill(model, PROMPT), prefill(oracle.ours(), PROMPT))


def test_reserved_rows_are_left_out(oracle: Oracle) -> None:
    few, all_rows = load(oracle.source, oracle, token_count=100), load(oracle.source, oracle, token_count=VOCABULARY)
    assert prefill(few, PROMPT).shape == (20, 100)
    torch.testing.assert_close(prefill(few, PROMPT), prefill(all_rows, PROMPT)[:, :100])


@pytest.mark.parametrize("token_count", [0, VOCABULARY + 1])
def test_token_count_must_fit(oracle: Oracle, token_count: int) -> None:
    with pytest.raises(ValueError, match=f"token_count is {token_count}; the vocabulary has 500 rows"):
        load(oracle.source, oracle, token_count=token_count)


def test_float16_is_refused(oracle: Oracle) -> None:
    with pytest.raises(ValueError, match=r"dtype is torch.float16"):
        load(oracle.source, oracle, dtype=torch.float16)


def test_a_wrong_shape_names_the_parameter(oracle: Oracle) -> None:
    name = "text/layers/0/gdn/norm"
    with pytest.raises(ArtifactError, match=rf"{name} has shape \[64\]; the text config asks for \[128\]"):
        load(Recording(oracle, **{name: np.zeros(64, np.float32)}), oracle)


def test_tied_embeddings_share_memory(oracle: Oracle) -> None:
    source = Recording(oracle)
    config = dataclasses.replace(oracle.config, tie_word_embeddings=True)
    model = TextModel.load(source, config, device=CPU, dtype=torch.float32, token_count=TOKEN_COUNT)
    assert "text/output_head" not in source.names
    assert model.weights.head.data_ptr() == model.weights.embedding.data_ptr()
    assert model.weights.head.shape == (TOKEN_COUNT, config.hidden_size)


def test_arrays_become_tensors_without_a_change_of_dtype() -> None:
    wide = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert to_torch(wide).data_ptr() == wide.ctypes.data
    wide.flags.writeable = False
    half = to_torch(wide.astype(ml_dtypes.bfloat16))
    assert half.dtype == torch.bfloat16
    assert half.tolist() == to_torch(wide).tolist() == to_torch(np.asfortranarray(wide)).tolist() == wide.tolist()
    with pytest.raises(TypeError):
        to_torch(np.zeros(2, dtype=ml_dtypes.float8_e4m3fn))


def swap_norms(model: TextModel, which: str) -> TextModel:
    """The same model with one norm kind mistaken for the other: a weight w becomes w - 1 or w + 1."""
    layers = []
    for layer in model.weights.layers:
        mixer = layer.mixer
        if which == "head" and isinstance(mixer, AttentionWeights):
            mixer = dataclasses.replace(mixer, head_norm=mixer.head_norm - 1)
        if which == "gdn" and isinstance(mixer, GatedDeltaNetWeights):
            mixer = dataclasses.replace(mixer, norm=mixer.norm + 1)
        changes = {which: getattr(layer, which) - 1} if which in ("input_norm", "post_attention_norm") else {}
        layers.append(dataclasses.replace(layer, mixer=mixer, **changes))
    weights = dataclasses.replace(model.weights, layers=tuple(layers))
    if which == "final":
        weights = dataclasses.replace(weights, final_norm=weights.final_norm - 1)
    return TextModel(model.config, weights)


@pytest.mark.parametrize("which", ["head", "gdn", "input_norm", "post_attention_norm", "final"])
def test_a_mistaken_norm_kind_shows(oracle: Oracle, which: str) -> None:
    exact = oracle.logits(PROMPT)
    assert relative_distance(prefill(oracle.ours(), PROMPT), exact) < 1e-4
    assert relative_distance(prefill(swap_norms(oracle.ours(), which), PROMPT), exact) > 1e-2
