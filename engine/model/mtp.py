"""The multi-token-prediction layer (spec/model.md §8): it guesses the token after the next one."""

import torch

from engine.artifact.config import TextConfig
from engine.artifact.parameters import ParameterSource
from engine.model.attention import full_attention
from engine.model.batch import Batch, check
from engine.model.feed_forward import feed_forward
from engine.model.pools import Pools
from engine.model.text import TextModel
from engine.model.weights import AttentionWeights, MtpWeights, Progress, load_mtp
from kernels.linear import linear
from kernels.norm import rms0


class MtpLayer:
    """One full-attention block with its own pages; embedding, rotary angles and head are the text model's."""

    def __init__(self, text: TextModel, weights: MtpWeights) -> None:
        self.text = text
        self.weights = weights

    @classmethod
    def load(cls, source: ParameterSource, text: TextModel, *, progress: Progress | None = None) -> "MtpLayer":
        """Read the `mtp/` parameters onto the text model's device, in its dtype.

        Raises:
            ArtifactError: a parameter is missing or its shape does not follow from the text config.
        """
        return cls(text, load_mtp(source, text.config, device=text.device, dtype=text.dtype, progress=progress))

    @property
    def config(self) -> TextConfig:
        """The text model's config, which also describes this layer."""
        return self.text.config

    def new_pools(self, pages: int, *, kv_dtype: torch.dtype) -> Pools:
        """Zeroed pages for this layer. There is no recurrent state: segments may name any slot."""
        return Pools.zeros(
            self.config,
            attention_layers=1,
            linear_layers=0,
            pages=pages,
            states=0,
            kv_dtype=kv_dtype,
            state_dtype=torch.float32,
            column_dtype=self.text.dtype,
            device=self.text.device,
        )

    def forward(self, batch: Batch, hidden: torch.Tensor, pools: Pools) -> torch.Tensor:
        """Run the layer over columns t: token x_{t+1}, hidden h_t, position p_t.

        Args:
            batch: token ids shifted left by one; positions, pages and frontiers unshifted.
            hidden: [T, H]: the text model's `forward` output at t or, when drafting on, this layer's own output.
            pools: from `new_pools`; the cache must hold the whole prefix.

        Returns:
            [T, H] after the layer's final norm. `text.logits` of it guesses x_{t+2}; unchanged, it is the hidden
            input of the next draft step.

        Raises:
            ValueError: the batch does not fit the pools, or hidden has another shape; nothing has been written.
        """
        config, weights = self.config, self.weights
        epsilon = config.rms_norm_eps
        spans = check(batch, pools)
        wanted = (batch.token_ids.shape[0], config.hidden_size)
        if hidden.shape != wanted:
            raise ValueError(f"hidden is {list(hidden.shape)}; wanted {list(wanted)}")
        mixer = weights.layer.mixer
        assert isinstance(mixer, AttentionWeights)  # load_mtp asks for full attention
        rotation = self.text.rotation(batch.positions)
        embedded = rms0(self.text.embed(batch.token_ids), weights.embedding_norm, epsilon)
        x = linear(torch.cat((embedded, rms0(hidden, weights.hidden_norm, epsilon)), dim=-1), weights.input_projection)
        normed = rms0(x, weights.layer.input_norm, epsilon)
        x = x + full_attention(
            normed, mixer, config, rotation=rotation, spans=spans, keys=pools.keys[0], values=pools.values[0]
        )
        normed = rms0(x, weights.layer.post_attention_norm, epsilon)
        x = x + feed_forward(normed, weights.layer.feed_forward, config)
        return rms0(x, weights.final_norm, epsilon)
