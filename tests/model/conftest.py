"""Oracle models, built once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import nn

from engine.artifact.config import TextConfig
from engine.artifact.parameters import ParameterSource
from engine.model import MtpLayer, TextModel
from tests.model.oracle import FAMILIES, TOKEN_COUNT, StateDictionarySource, mtp_state, text_config, transformers_model

CPU = torch.device("cpu")
SourceFactory = Callable[[Mapping[str, torch.Tensor], TextConfig], ParameterSource]


@dataclass(frozen=True)
class Oracle:
    """A transformers model, its logits, and where our model reads the same weights."""

    family: str
    config: TextConfig
    source: ParameterSource
    state: Mapping[str, torch.Tensor]
    model: nn.Module

    def logits(self, token_ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Float32 [T, token count], computed in `dtype` without a cache."""
        with torch.inference_mode():
            output: torch.Tensor = self.in_dtype(dtype)(input_ids=token_ids[None], use_cache=False).logits
        return output[0, :, :TOKEN_COUNT].float()

    @cache  # noqa: B019  the oracle lives as long as the session
    def in_dtype(self, dtype: torch.dtype) -> nn.Module:
        """The model in another dtype."""
        if dtype == torch.float32:
            return self.model
        other = transformers_model(self.family)
        return other.to(dtype)

    @cache  # noqa: B019
    def ours(self, dtype: torch.dtype = torch.float32) -> TextModel:
        """Our text model on the same weights."""
        return TextModel.load(self.source, self.config, device=CPU, dtype=dtype, token_count=TOKEN_COUNT)

    @cache  # noqa: B019
    def mtp(self) -> MtpLayer:
        """Our MTP layer, in float32."""
        return MtpLayer.load(self.source, self.ours())

    def __hash__(self) -> int:
        return hash(self.family)


@pytest.fixture(scope="session")
def parameter_source() -> SourceFactory:
    """Makes the source our model loads from, out of checkpoint tensors. A converted artifact can take its place."""
    return StateDictionarySource


@pytest.fixture(scope="session", params=FAMILIES)
def oracle(request: pytest.FixtureRequest, parameter_source: SourceFactory) -> Oracle:
    """Both families in turn."""
    family: str = request.param
    config, model = text_config(family), transformers_model(family)
    state = {**model.state_dict(), **mtp_state(config)}
    return Oracle(family, config, parameter_source(state, config), state, model)
