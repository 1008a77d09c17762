"""The logical parameters of every component: names, shapes, uses and packing groups (spec/artifact.md §4.2, §4.3).

A converter plans objects from these lists, a binder checks an artifact against them. Order is registration order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from engine.artifact.companions import (
    DRAFTS,
    DraftConfig,
    DraftName,
    VisionConfig,
    parse_draft_config,
    parse_mtp_config,
    parse_vision_config,
)
from engine.artifact.config import TextConfig, parse_text_config

if TYPE_CHECKING:
    import numpy as np


class ParameterSource(Protocol):
    """Anything a model can be loaded from."""

    def values(self, name: str) -> "np.ndarray[Any, np.dtype[Any]]":
        """The logical parameter `name`, decoded, in its logical shape.

        Raises:
            ArtifactError: there is no such parameter.
        """


@dataclass(frozen=True)
class Parameter:
    """One logical parameter.

    Attributes:
        direct: the format it has when not quantised.
        inputs: the activations it multiplies, one Use each; empty for what is never a projection.
        quantizable: whether any matrix format is legal; else only `direct` is.
        alias: the parameter whose words it shares, bound to the same rows.
    """

    name: str
    shape: tuple[int, ...]
    direct: str = "bf16"
    inputs: tuple[str, ...] = ()
    quantizable: bool = False
    alias: str | None = None


@dataclass(frozen=True)
class Registry:
    """Parameters in registration order, and the groups that may be packed into one object, in the order to try."""

    parameters: tuple[Parameter, ...]
    groups: tuple[tuple[str, ...], ...] = ()

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)

    def __add__(self, other: "Registry") -> "Registry":
        return Registry(self.parameters + other.parameters, self.groups + other.groups)


def component_registry(configs: Mapping[str, Mapping[str, Any]], proposal_rows: int | None = None) -> Registry:
    """Every parameter of the components in `configs` (component id → normalised config record).

    Raises:
        ArtifactError: a config is not one this version can read.
    """
    text = parse_text_config(configs["text"])
    registry = text_parameters(text, tuple(configs))
    if "mtp" in configs:
        parse_mtp_config(configs["mtp"], text)
        registry += mtp_parameters(text)
    if "vision" in configs:
        registry += vision_parameters(parse_vision_config(configs["vision"]), text.hidden_size)
    for name in DRAFTS:
        if name in configs:
            registry += draft_parameters(name, parse_draft_config(name, configs[name], text), text)
    if proposal_rows is not None:
        registry += proposal_parameters(proposal_rows, text, tuple(configs))
    return registry


def text_parameters(config: TextConfig, companions: Sequence[str] = ()) -> Registry:
    """The text component. `companions` are the components present beside it: those that draft also use its head."""
    hidden, vocabulary = config.hidden_size, config.vocab_size
    drafts = tuple(f"{name}/final_hidden" for name in ("mtp", "dflash", "dflash2") if name in companions)
    stem = Registry(
        (
            Parameter("text/token_embedding", (vocabulary, hidden), quantizable=True),
            _projection("text/output_head", (vocabulary, hidden), "text/final_hidden", *drafts),
            Parameter("text/final_norm", (hidden,)),
        )
    )
    blocks = (
        _block(f"text/layers/{layer}/", config, attention=kind == "full_attention")
        for layer, kind in enumerate(config.layer_types)
    )
    return _joined(chain((stem,), blocks))


def mtp_parameters(config: TextConfig) -> Registry:
    """The multi-token prediction layer: a stem and one full-attention block; embedding and head are the target's."""
    hidden = config.hidden_size
    stem = Registry(
        (
            _projection("mtp/input_projection", (hidden, 2 * hidden), "mtp/stem_input"),
            Parameter("mtp/embedding_norm", (hidden,)),
            Parameter("mtp/hidden_norm", (hidden,)),
            Parameter("mtp/final_norm", (hidden,)),
        )
    )
    return stem + _block("mtp/layers/0/", config, attention=True)


def vision_parameters(config: VisionConfig, hidden_size: int) -> Registry:
    """The vision tower and the merger into a text stack of width `hidden_size`."""
    width, merged = config.hidden_size, config.merged_size
    stem = Registry(
        (
            _projection("vision/patch_embedding", (width, config.patch_elements), "vision/patch_input"),
            Parameter("vision/patch_embedding_bias", (width,)),
            Parameter("vision/position_embedding", (config.num_position_embeddings, width)),
        )
    )
    merger = Registry(
        (
            Parameter("vision/merger/norm_weight", (width,)),
            Parameter("vision/merger/norm_bias", (width,)),
            _projection("vision/merger/fc1", (merged, merged), "vision/merger/input"),
            Parameter("vision/merger/fc1_bias", (merged,)),
            _projection("vision/merger/fc2", (hidden_size, merged), "vision/merger/activation"),
            Parameter("vision/merger/fc2_bias", (hidden_size,)),
        )
    )
    blocks = (_vision_block(f"vision/layers/{layer}/", config) for layer in range(config.depth))
    return _joined(chain((stem,), blocks, (merger,)))


def draft_parameters(name: DraftName, config: DraftConfig, text: TextConfig) -> Registry:
    """A block-diffusion draft model over the target's hidden states."""
    hidden = text.hidden_size
    taps = len(config.target_layer_ids)
    registry = Registry(
        (
            _projection(f"{name}/feature_projection", (hidden, taps * hidden), f"{name}/target_features"),
            Parameter(f"{name}/context_norm", (hidden,)),
            Parameter(f"{name}/final_norm", (hidden,)),
        )
    )
    registry = _joined(
        chain((registry,), (_draft_block(name, layer, config, hidden) for layer in range(len(config.layer_types))))
    )
    if config.convolution is None:
        return registry
    rank, selector = config.convolution.selector_rank, f"{name}/candidate_selector/"
    return registry + Registry(
        (
            _projection(selector + "hidden_projection", (rank, hidden), f"{name}/final_hidden"),
            Parameter(selector + "predecessor_codebook", (text.vocab_size, rank)),
            Parameter(selector + "successor_codebook", (text.vocab_size, rank)),
        )
    )


def proposal_parameters(rows: int, text: TextConfig, companions: Sequence[str]) -> Registry:
    """The short output head that drafts may use instead of the full one: `rows` rows of it and their token ids."""
    drafts = tuple(f"{name}/final_hidden" for name in ("mtp", "dflash", "dflash2") if name in companions)
    return Registry(
        (
            _projection("proposal/head", (rows, text.hidden_size), *drafts),
            Parameter("proposal/token_ids", (rows,), "int32"),
        )
    )


def _projection(name: str, shape: tuple[int, ...], *inputs: str) -> Parameter:
    return Parameter(name, shape, "bf16", inputs, quantizable=True)


def _joined(registries: Iterable[Registry]) -> Registry:
    parts = tuple(registries)
    return Registry(
        tuple(chain.from_iterable(part.parameters for part in parts)),
        tuple(chain.from_iterable(part.groups for part in parts)),
    )


def _grouped(block: str, *groups: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(block + name for name in group.split()) for group in groups)


def _block(block: str, config: TextConfig, *, attention: bool) -> Registry:
    hidden = config.hidden_size
    mixer = _attention(block, config) if attention else _delta_net(block, config)
    feed_forward = _dense(block, config) if config.experts is None else _experts(block, config)
    return (
        Registry((Parameter(block + "input_norm", (hidden,)),))
        + mixer
        + Registry((Parameter(block + "post_attention_norm", (hidden,)),))
        + feed_forward
    )


def _attention(block: str, config: TextConfig) -> Registry:
    hidden, query, key, source = config.hidden_size, config.query_size, config.key_value_size, block + "mixer_input"
    return Registry(
        (
            _projection(block + "attention/query", (query, hidden), source),
            _projection(block + "attention/gate", (query, hidden), source),
            _projection(block + "attention/key", (key, hidden), source),
            _projection(block + "attention/value", (key, hidden), source),
            Parameter(block + "attention/query_norm", (config.head_dim,)),
            Parameter(block + "attention/key_norm", (config.head_dim,)),
            _projection(block + "attention/output", (hidden, query), block + "attention/gated_output"),
        ),
        _grouped(block + "attention/", "query key gate value", "query key", "gate value"),
    )


def _delta_net(block: str, config: TextConfig) -> Registry:
    hidden, source = config.hidden_size, block + "mixer_input"
    key, value, heads = config.linear_key_size, config.linear_value_size, config.linear_num_value_heads
    return Registry(
        (
            Parameter(block + "gdn/a_log", (heads,), "fp32"),
            Parameter(block + "gdn/dt_bias", (heads,), "fp32"),
            Parameter(block + "gdn/convolution", (config.linear_conv_kernel_dim, config.conv_channels)),
            _projection(block + "gdn/a_projection", (heads, hidden), source),
            _projection(block + "gdn/b_projection", (heads, hidden), source),
            _projection(block + "gdn/query", (key, hidden), source),
            _projection(block + "gdn/key", (key, hidden), source),
            _projection(block + "gdn/value", (value, hidden), source),
            _projection(block + "gdn/z", (value, hidden), source),
            Parameter(block + "gdn/norm", (config.linear_value_head_dim,)),
            _projection(block + "gdn/output", (hidden, value), block + "gdn/gated_output"),
        ),
        _grouped(block + "gdn/", "query key value z", "query key", "value z", "a_projection b_projection"),
    )


def _dense(block: str, config: TextConfig) -> Registry:
    assert config.intermediate_size is not None
    shape = (config.intermediate_size, config.hidden_size)
    return Registry(
        (
            _projection(block + "mlp/gate", shape, block + "ffn_input"),
            _projection(block + "mlp/up", shape, block + "ffn_input"),
            _projection(block + "mlp/down", shape[::-1], block + "mlp/product"),
        ),
        _grouped(block, "mlp/gate mlp/up"),
    )


def _experts(block: str, config: TextConfig) -> Registry:
    experts, hidden, source = config.experts, config.hidden_size, block + "ffn_input"
    assert experts is not None
    parameters = [
        _projection(block + "moe/router", (experts.count, hidden), source),
        _projection(block + "moe/shared_score", (1, hidden), source),
    ]
    for index in range(experts.count):
        expert = f"{block}moe/experts/{index}/"
        inner = (experts.intermediate_size, hidden)
        parameters += [
            _projection(expert + "gate", inner, source),
            _projection(expert + "up", inner, source),
            _projection(expert + "down", inner[::-1], expert + "product"),
        ]
    inner = (experts.shared_intermediate_size, hidden)
    parameters += [
        _projection(block + "moe/shared/gate", inner, source),
        _projection(block + "moe/shared/up", inner, source),
        _projection(block + "moe/shared/down", inner[::-1], block + "moe/shared/product"),
    ]
    names = [f"{block}moe/experts/{index}/" for index in range(experts.count)]
    return Registry(
        tuple(parameters),
        (
            (block + "moe/router", block + "moe/shared_score"),
            tuple(name + part for name in names for part in ("gate", "up")),
            tuple(name + "down" for name in names),
            (block + "moe/shared/gate", block + "moe/shared/up"),
        ),
    )


def _vision_block(block: str, config: VisionConfig) -> Registry:
    width, inner = config.hidden_size, config.intermediate_size
    norms = tuple(Parameter(f"{block}norm{i}_{part}", (width,)) for i in (1, 2) for part in ("weight", "bias"))
    projections = (
        ("attention/query", width, width, "attention_input"),
        ("attention/key", width, width, "attention_input"),
        ("attention/value", width, width, "attention_input"),
        ("attention/output", width, width, "attention_output"),
        ("mlp/fc1", inner, width, "mlp_input"),
        ("mlp/fc2", width, inner, "mlp_activation"),
    )
    pairs = (
        (_projection(block + name, (rows, columns), block + source), Parameter(f"{block}{name}_bias", (rows,)))
        for name, rows, columns, source in projections
    )
    return Registry(
        norms + tuple(chain.from_iterable(pairs)),
        _grouped(block + "attention/", "query key value", "query_bias key_bias value_bias"),
    )


def _draft_block(name: DraftName, layer: int, config: DraftConfig, hidden: int) -> Registry:
    block = f"{name}/layers/{layer}/"
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    source, context = block + "query_projection_input", f"{name}/context_input"
    inner = (config.intermediate_size, hidden)

    def shared(part: str) -> Parameter:
        target = block + f"attention/{part}"
        return Parameter(
            block + f"attention/context_{part}", (key, hidden), "bf16", (context,), quantizable=True, alias=target
        )

    parameters = [
        Parameter(block + "input_norm", (hidden,)),
        Parameter(block + "post_attention_norm", (hidden,)),
        _projection(block + "attention/query", (query, hidden), source),
        _projection(block + "attention/key", (key, hidden), source),
        shared("key"),
        _projection(block + "attention/value", (key, hidden), source),
        shared("value"),
        Parameter(block + "attention/query_norm", (config.head_dim,)),
        Parameter(block + "attention/key_norm", (config.head_dim,)),
        _projection(block + "attention/output", (hidden, query), block + "attention_output"),
        _projection(block + "mlp/gate", inner, block + "mlp_input"),
        _projection(block + "mlp/up", inner, block + "mlp_input"),
        _projection(block + "mlp/down", inner[::-1], block + "mlp_product"),
    ]
    if config.convolution is not None:
        taps, groups = config.convolution.kernel_size, hidden // config.convolution.group_size
        for branch in ("attention_conv", "mlp_conv"):
            parameters += [
                Parameter(f"{block}{branch}/base_kernel", (2, taps, hidden)),
                _projection(
                    f"{block}{branch}/kernel_projection", (2 * taps * groups, hidden), f"{block}{branch}_input"
                ),
            ]
    return Registry(
        tuple(parameters),
        _grouped(block, "attention/query attention/key attention/value", "mlp/gate mlp/up"),
    )
