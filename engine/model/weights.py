"""Weights of the text stack and the MTP layer, read parameter by parameter (names: spec/artifact.md §4.2).

Matrices that read the same input are stored as one, so that a layer makes few products. The fused matrix is allocated
first and filled block by block: loading never holds more than one decoded parameter beside the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from engine.artifact.config import Experts, TextConfig
from engine.artifact.parameters import ParameterSource
from engine.exits import ArtifactError

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class AttentionWeights:
    """Full attention. `projection` rows: query, key, gate, value. `head_norm` [Hq + Hkv, D]: query heads first."""

    projection: torch.Tensor
    head_norm: torch.Tensor
    output: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetWeights:
    """Gated DeltaNet. `projection` rows: query, key, value, z, a, b. `convolution` [4, channels], tap-major."""

    projection: torch.Tensor
    convolution: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor
    output: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class DenseWeights:
    """SwiGLU. `gate_up` [2I, H], gate rows first; `down` [H, I]."""

    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class ExpertWeights:
    """Mixture of experts. `router` [E + 1, H], shared score last; `gate_up` [E, 2I, H]; `down` [E, H, I]."""

    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    shared_gate_up: torch.Tensor
    shared_down: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """One decoder block."""

    input_norm: torch.Tensor
    mixer: AttentionWeights | GatedDeltaNetWeights
    post_attention_norm: torch.Tensor
    feed_forward: DenseWeights | ExpertWeights


@dataclass(frozen=True, kw_only=True)
class TextWeights:
    """The text stack. `embedding` [V, H]; `head` [token count, H]: reserved rows are left out."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class MtpWeights:
    """The multi-token-prediction layer. `input_projection` [H, 2H], embedding columns first."""

    embedding_norm: torch.Tensor
    hidden_norm: torch.Tensor
    input_projection: torch.Tensor
    layer: LayerWeights
    final_norm: torch.Tensor


class Loader:
    """Reads parameters into tensors on a device and counts them.

    Matrices take `dtype`. Norms, the convolution and the decay parameters stay float32: they are small, and the
    arithmetic around them is float32 anyway.
    """

    def __init__(
        self,
        source: ParameterSource,
        config: TextConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        total: int,
        progress: Progress | None,
    ) -> None:
        self.config = config
        self._source = source
        self._device = device
        self._dtype = dtype
        self._done = 0
        self._total = total
        self._progress = progress

    def matrix(self, *blocks: tuple[str, int], columns: int) -> torch.Tensor:
        """Row blocks (name, rows), stacked: [sum of rows, columns]."""
        rows = sum(count for _, count in blocks)
        fused = torch.empty((rows, columns), dtype=self._dtype, device=self._device)
        self._fill(fused, blocks)
        return fused

    def experts(self, prefix: str, parts: tuple[str, ...], rows: int, columns: int) -> torch.Tensor:
        """The same parts of every expert, stacked: [experts, parts * rows, columns]."""
        assert self.config.experts is not None
        shape = (self.config.experts.count, len(parts) * rows, columns)
        fused = torch.empty(shape, dtype=self._dtype, device=self._device)
        for expert, block in enumerate(fused):
            self._fill(block, [(f"{prefix}{expert}/{part}", rows) for part in parts])
        return fused

    def direct(self, name: str, *shape: int) -> torch.Tensor:
        """A small parameter, float32."""
        return self._read(name, shape).to(self._device, torch.float32)

    def layer(self, block: str, kind: str) -> LayerWeights:
        """One decoder block, whose parameters are named `block` + suffix."""
        hidden = self.config.hidden_size
        return LayerWeights(
            input_norm=self.direct(f"{block}input_norm", hidden),
            mixer=self._attention(f"{block}attention/")
            if kind == "full_attention"
            else self._gated_delta_net(f"{block}gdn/"),
            post_attention_norm=self.direct(f"{block}post_attention_norm", hidden),
            feed_forward=self._dense(f"{block}mlp/", self.config.intermediate_size)
            if self.config.intermediate_size is not None
            else self._experts(f"{block}moe/", self.config.experts),
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        config = self.config
        heads = config.num_attention_heads, config.num_key_value_heads
        return AttentionWeights(
            projection=self.matrix(
                (f"{prefix}query", config.query_size),
                (f"{prefix}key", config.key_value_size),
                (f"{prefix}gate", config.query_size),
                (f"{prefix}value", config.key_value_size),
                columns=config.hidden_size,
            ),
            head_norm=torch.cat(
                [
                    self.direct(f"{prefix}{name}_norm", config.head_dim).expand(count, -1)
                    for name, count in zip(("query", "key"), heads, strict=True)
                ]
            ),
            output=self.matrix((f"{prefix}output", config.hidden_size), columns=config.query_size),
        )

    def _gated_delta_net(self, prefix: str) -> GatedDeltaNetWeights:
        config = self.config
        heads = config.linear_num_value_heads
        return GatedDeltaNetWeights(
            projection=self.matrix(
                (f"{prefix}query", config.linear_key_size),
                (f"{prefix}key", config.linear_key_size),
                (f"{prefix}value", config.linear_value_size),
                (f"{prefix}z", config.linear_value_size),
                (f"{prefix}a_projection", heads),
                (f"{prefix}b_projection", heads),
                columns=config.hidden_size,
            ),
            convolution=self.direct(f"{prefix}convolution", config.linear_conv_kernel_dim, config.conv_channels),
            a_log=self.direct(f"{prefix}a_log", heads),
            dt_bias=self.direct(f"{prefix}dt_bias", heads),
            norm=self.direct(f"{prefix}norm", config.linear_value_head_dim),
            output=self.matrix((f"{prefix}output", config.hidden_size), columns=config.linear_value_size),
        )

    def _dense(self, prefix: str, width: int) -> DenseWeights:
        hidden = self.config.hidden_size
        return DenseWeights(
            gate_up=self.matrix((f"{prefix}gate", width), (f"{prefix}up", width), columns=hidden),
            down=self.matrix((f"{prefix}down", hidden), columns=width),
        )

    def _experts(self, prefix: str, experts: Experts | None) -> ExpertWeights:
        assert experts is not None  # a text config has exactly one of intermediate_size and experts
        hidden, shared = self.config.hidden_size, experts.shared_intermediate_size
        each = f"{prefix}experts/"
        return ExpertWeights(
            router=self.matrix((f"{prefix}router", experts.count), (f"{prefix}shared_score", 1), columns=hidden),
            gate_up=self.experts(each, ("gate", "up"), experts.intermediate_size, hidden),
            down=self.experts(each, ("down",), hidden, experts.intermediate_size),
            shared_gate_up=self.matrix(
                (f"{prefix}shared/gate", shared), (f"{prefix}shared/up", shared), columns=hidden
            ),
            shared_down=self.matrix((f"{prefix}shared/down", hidden), columns=shared),
        )

    def _fill(self, fused: torch.Tensor, blocks: tuple[tuple[str, int], ...] | list[tuple[str, int]]) -> None:
        begin = 0
        for name, rows in blocks:
            fused[begin : begin + rows].copy_(self._read(name, (rows, fused.shape[1])))
            begin += rows

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        values = self._source.values(name)
        if values.shape == (prod(shape),):
            values = values.reshape(shape)  # an artifact may bind pieces whose shape only the config tells
        if values.shape != shape:
            raise ArtifactError(
                f"parameter {name} has shape {list(values.shape)}; the text config asks for {list(shape)}"
            )
        tensor = to_torch(values)
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)
        return tensor


def to_torch(values: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor of the same dtype; memory is shared where the array may be written.

    Raises:
        TypeError: numpy and torch have no dtype in common.
    """
    if not values.flags.writeable or not values.flags.c_contiguous:
        values = np.array(values, order="C")
    if values.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(values.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def parameter_count(config: TextConfig, kinds: tuple[str, ...]) -> int:
    """Logical parameters of decoder blocks of the given kinds."""
    mixers = sum(6 + 1 if kind == "full_attention" else 11 for kind in kinds)
    feed_forward = 3 if config.experts is None else 5 + 3 * config.experts.count
    return mixers + (2 + feed_forward) * len(kinds)


def load_text(
    source: ParameterSource,
    config: TextConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    token_count: int,
    progress: Progress | None,
) -> TextWeights:
    """Load the text stack. `progress(done, total)` counts logical parameters.

    Raises:
        ArtifactError: a parameter is missing or its shape does not follow from the config.
    """
    kinds = config.layer_types
    total = parameter_count(config, kinds) + (2 if config.tie_word_embeddings else 3)
    loader = Loader(source, config, device=device, dtype=dtype, total=total, progress=progress)
    embedding = loader.matrix(("text/token_embedding", config.vocab_size), columns=config.hidden_size)
    layers = tuple(loader.layer(f"text/layers/{index}/", kind) for index, kind in enumerate(kinds))
    final_norm = loader.direct("text/final_norm", config.hidden_size)
    if config.tie_word_embeddings:
        head = embedding
    else:
        head = loader.matrix(("text/output_head", config.vocab_size), columns=config.hidden_size)
    return TextWeights(embedding=embedding, layers=layers, final_norm=final_norm, head=head[:token_count])


def load_mtp(
    source: ParameterSource,
    config: TextConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress | None,
) -> MtpWeights:
    """Load the MTP layer; arguments and errors as `load_text`."""
    hidden = config.hidden_size
    total = parameter_count(config, ("full_attention",)) + 4
    loader = Loader(source, config, device=device, dtype=dtype, total=total, progress=progress)
    return MtpWeights(
        embedding_norm=loader.direct("mtp/embedding_norm", hidden),
        hidden_norm=loader.direct("mtp/hidden_norm", hidden),
        input_projection=loader.matrix(("mtp/input_projection", hidden), columns=2 * hidden),
        layer=loader.layer("mtp/layers/0/", "full_attention"),
        final_norm=loader.direct("mtp/final_norm", hidden),
    )
