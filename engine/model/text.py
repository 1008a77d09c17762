"""The text model: token columns in, final hidden vectors and logits out."""

import torch

from engine.artifact.config import TextConfig, mrope_axes
from engine.artifact.parameters import ParameterSource
from engine.model.attention import full_attention
from engine.model.batch import Batch, check
from engine.model.feed_forward import feed_forward
from engine.model.gated_delta_net import gated_delta_net
from engine.model.pools import Pools
from engine.model.weights import AttentionWeights, Progress, TextWeights, load_text
from kernels.embedding import embedding
from kernels.linear import linear
from kernels.norm import rms0
from kernels.rotary import angles, inverse_frequencies


class Rotation:
    """Position angles for one text config, computed once a forward pass."""

    def __init__(self, config: TextConfig, device: torch.device) -> None:
        self._axes = torch.tensor(mrope_axes(config.mrope_section), dtype=torch.int64, device=device)
        self._frequencies = inverse_frequencies(config.rope_theta, config.rotary_dim, device)

    def __call__(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine, float32 [T, pairs], of positions int64 [3, T]."""
        return angles(positions, self._axes, self._frequencies)


class TextModel:
    """Embedding, decoder blocks, final norm and output head (spec/model.md §3, §7).

    Residuals take the dtype of the matrices: bfloat16, or float32 on the CPU. `forward` writes to pools in place, so it
    runs under `torch.inference_mode()`; the kernels under it are differentiable, `forward` is not.
    """

    def __init__(self, config: TextConfig, weights: TextWeights) -> None:
        self.config = config
        self.weights = weights
        self.rotation = Rotation(config, weights.embedding.device)

    @classmethod
    def load(
        cls,
        source: ParameterSource,
        config: TextConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        token_count: int,
        progress: Progress | None = None,
    ) -> "TextModel":
        """Read every parameter of the text component.

        Args:
            source: decodes logical parameters by name.
            config: the text component's config.
            device: where tensors and arithmetic live.
            dtype: of matrices and activations: torch.float32 or torch.bfloat16.
            token_count: ids a tokenizer can produce; later rows of the head are reserved and dropped.
            progress: called with (logical parameters read, all of them).

        Raises:
            ArtifactError: a parameter is missing or its shape does not follow from the config.
            ValueError: dtype or token_count is out of range.
        """
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"dtype is {dtype}; the text model runs in torch.float32 or torch.bfloat16")
        if not 0 < token_count <= config.vocab_size:
            raise ValueError(f"token_count is {token_count}; the vocabulary has {config.vocab_size} rows")
        return cls(
            config,
            load_text(source, config, device=device, dtype=dtype, token_count=token_count, progress=progress),
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of matrices and activations."""
        return self.weights.embedding.dtype

    def new_pools(self, pages: int, states: int, *, kv_dtype: torch.dtype, state_dtype: torch.dtype) -> Pools:
        """Zeroed pools of `pages` pages of 64 tokens and `states` state slots."""
        return Pools.zeros(
            self.config,
            attention_layers=len(self.config.attention_layers),
            linear_layers=len(self.config.linear_layers),
            pages=pages,
            states=states,
            kv_dtype=kv_dtype,
            state_dtype=state_dtype,
            column_dtype=self.dtype,
            device=self.device,
        )

    def reset_state(self, pools: Pools, slot: int) -> None:
        """Zero one state slot: a new sequence starts there."""
        pools.reset_state(slot)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Embedding rows [T, H] of int64 ids [T]."""
        return embedding(token_ids, self.weights.embedding)

    def forward(self, batch: Batch, pools: Pools) -> torch.Tensor:
        """Run the batch's columns, advancing pages and states of its segments.

        Returns:
            Hidden vectors after the final norm, [T, H].

        Raises:
            ValueError: the batch does not fit the pools; nothing has been written.
        """
        config = self.config
        spans = check(batch, pools)
        rotation = self.rotation(batch.positions)
        x = self.embed(batch.token_ids)
        attention_layer = linear_layer = 0
        for layer in self.weights.layers:
            normed = rms0(x, layer.input_norm, config.rms_norm_eps)
            if isinstance(layer.mixer, AttentionWeights):
                x = x + full_attention(
                    normed,
                    layer.mixer,
                    config,
                    rotation=rotation,
                    spans=spans,
                    keys=pools.keys[attention_layer],
                    values=pools.values[attention_layer],
                )
                attention_layer += 1
            else:
                x = x + gated_delta_net(
                    normed,
                    layer.mixer,
                    config,
                    spans=spans,
                    recurrent=pools.recurrent[linear_layer],
                    convolution=pools.convolution[linear_layer],
                )
                linear_layer += 1
            normed = rms0(x, layer.post_attention_norm, config.rms_norm_eps)
            x = x + feed_forward(normed, layer.feed_forward, config)
        return rms0(x, self.weights.final_norm, config.rms_norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores float32 [n, token count] of final hidden vectors [n, H]; reserved rows are not computed."""
        return linear(hidden, self.weights.head).to(torch.float32)
