"""Which checkpoint tensor each logical parameter comes from, and by which rows (spec/artifact.md §4.2)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import ml_dtypes
import numpy as np

from engine.artifact.companions import VisionConfig
from engine.artifact.config import TextConfig
from engine.artifact.convert.sources import DTYPES, FLOATS, Array, Checkpoint, CheckpointError
from engine.artifact.parameters import Parameter


@dataclass(frozen=True)
class Source:
    """Rows of a checkpoint tensor of exactly `shape`, seen as `[rows, columns]` with the parameter's columns.

    Row r of the parameter is row `begin + (r // run) * stride + r % run` of the tensor; `run` 0 means all in one run.
    `tap_major` is for the convolution: `[channels, 1, taps]` becomes `[taps, channels]`. `origin` names the checkpoint.
    With `rows`, row r of the parameter is row `rows[r]` of the tensor.
    """

    tensor: str
    shape: tuple[int, ...]
    begin: int = 0
    run: int = 0
    stride: int = 0
    tap_major: bool = False
    origin: str = "base"
    rows: tuple[int, ...] | None = None

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Tensor rows `[begin, end)` that hold parameter rows `[first, last)`, in order."""
        if self.rows is not None:
            yield from ((row, row + 1) for row in self.rows[first:last])
            return
        if not self.run:
            yield self.begin + first, self.begin + last
            return
        while first < last:
            index, inside = divmod(first, self.run)
            count = min(self.run - inside, last - first)
            begin = self.begin + index * self.stride + inside
            yield begin, begin + count
            first += count


def text_sources(config: TextConfig, prefix: str, has: Callable[[str], bool]) -> dict[str, Source]:
    """Sources of the text component. `has` says whether a tensor exists: experts come fused or one by one."""
    embedding = prefix + "embed_tokens.weight"
    head = embedding if config.tie_word_embeddings else "lm_head.weight"
    table = (config.vocab_size, config.hidden_size)
    sources = {
        "text/token_embedding": Source(embedding, table),
        "text/output_head": Source(head, table),
        "text/final_norm": Source(prefix + "norm.weight", (config.hidden_size,)),
    }
    for layer, kind in enumerate(config.layer_types):
        block, source = f"text/layers/{layer}/", f"{prefix}layers.{layer}."
        sources |= _block(block, source, config, has, attention=kind == "full_attention")
    return sources


def mtp_sources(config: TextConfig, has: Callable[[str], bool]) -> dict[str, Source]:
    """Sources of the multi-token prediction layer, which checkpoints keep under `mtp.`."""
    hidden = config.hidden_size
    sources = {
        "mtp/input_projection": Source("mtp.fc.weight", (hidden, 2 * hidden)),
        "mtp/embedding_norm": Source("mtp.pre_fc_norm_embedding.weight", (hidden,)),
        "mtp/hidden_norm": Source("mtp.pre_fc_norm_hidden.weight", (hidden,)),
        "mtp/final_norm": Source("mtp.norm.weight", (hidden,)),
    }
    return sources | _block("mtp/layers/0/", "mtp.layers.0.", config, has, attention=True)


def vision_sources(config: VisionConfig, hidden_size: int) -> dict[str, Source]:
    """Sources of the vision tower."""
    width, inner, merged, prefix = config.hidden_size, config.intermediate_size, config.merged_size, "model.visual."
    patch = (width, 3, config.temporal_patch_size, config.patch_size, config.patch_size)
    sources = {
        "vision/patch_embedding": Source(prefix + "patch_embed.proj.weight", patch),
        "vision/patch_embedding_bias": Source(prefix + "patch_embed.proj.bias", (width,)),
        "vision/position_embedding": Source(prefix + "pos_embed.weight", (config.num_position_embeddings, width)),
        "vision/merger/norm_weight": Source(prefix + "merger.norm.weight", (width,)),
        "vision/merger/norm_bias": Source(prefix + "merger.norm.bias", (width,)),
    }
    sources |= _affine("vision/merger/fc1", prefix + "merger.linear_fc1", (merged, merged))
    sources |= _affine("vision/merger/fc2", prefix + "merger.linear_fc2", (hidden_size, merged))
    for layer in range(config.depth):
        block, source = f"vision/layers/{layer}/", f"{prefix}blocks.{layer}."
        for norm in ("norm1", "norm2"):
            for part in ("weight", "bias"):
                sources[f"{block}{norm}_{part}"] = Source(f"{source}{norm}.{part}", (width,))
        for third, part in enumerate(("query", "key", "value")):
            begin = third * width
            sources[f"{block}attention/{part}"] = Source(source + "attn.qkv.weight", (3 * width, width), begin)
            sources[f"{block}attention/{part}_bias"] = Source(source + "attn.qkv.bias", (3 * width,), begin)
        sources |= _affine(block + "attention/output", source + "attn.proj", (width, width))
        sources |= _affine(block + "mlp/fc1", source + "mlp.linear_fc1", (inner, width))
        sources |= _affine(block + "mlp/fc2", source + "mlp.linear_fc2", (width, inner))
    return sources


def check_sources(checkpoint: Checkpoint, sources: Mapping[str, Source], prefixes: tuple[str, ...]) -> None:
    """Check that every source exists with the right shape and a floating type, before anything is written.

    `prefixes` are the parts of the checkpoint that the chosen components own: a tensor there that no parameter comes
    from means mathematics this version does not know.

    Raises:
        CheckpointError: naming the first tensors that are missing, misshapen, of another type, or left over.
    """
    needed = {source.tensor: source.shape for source in sources.values()}
    missing = [name for name in needed if name not in checkpoint]
    if missing:
        raise CheckpointError(f"the checkpoint lacks {_some(missing)}")
    for name, shape in needed.items():
        stored = checkpoint.tensors[name]
        if stored.shape != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {list(stored.shape)}; the configuration asks for {list(shape)}"
            )
        if stored.dtype not in FLOATS:
            raise CheckpointError(
                f"tensor {name!r} is of type {stored.dtype}; only unquantised checkpoints ({', '.join(FLOATS)}) convert"
            )
    unknown = [name for name in checkpoint if name.startswith(prefixes) and name not in needed]
    if unknown:
        raise CheckpointError(f"this version does not know what to do with {_some(unknown)}")


def read_rows(checkpoint: Checkpoint, source: Source, parameter: Parameter, first: int, last: int) -> Array:
    """Rows `[first, last)` of a parameter in the checkpoint's type, shape `[last - first, *parameter.shape[1:]]`."""
    if source.tap_major:
        channels, _, taps = source.shape
        whole = checkpoint.read(source.tensor, 0, prod(source.shape)).reshape(channels, taps)
        return np.ascontiguousarray(whole.T[first:last])
    rows = read_runs(checkpoint, source, source.tensor, prod(parameter.shape[1:]), (first, last))
    return rows.reshape(last - first, *parameter.shape[1:])


def read_runs(checkpoint: Checkpoint, source: Source, tensor: str, columns: int, rows: tuple[int, int]) -> Array:
    """Rows `[rows[0], rows[1])` of those that `source` describes, of a tensor with `columns` columns, as a matrix."""
    pieces = [checkpoint.read(tensor, begin * columns, end * columns) for begin, end in source.runs(*rows)]
    return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).reshape(-1, columns)


def cast(values: Array, format: str) -> Array:
    """Words of a direct format: equal types bit for bit, other floats rounded to nearest even."""
    target = {"bf16": np.dtype(ml_dtypes.bfloat16), "fp32": np.dtype("<f4"), "int32": np.dtype("<i4")}[format]
    if values.dtype == target:
        return values
    assert values.dtype in {DTYPES[name] for name in FLOATS}
    return values.astype(np.float32).astype(target)


def _block(
    block: str, source: str, config: TextConfig, has: Callable[[str], bool], *, attention: bool
) -> dict[str, Source]:
    hidden = (config.hidden_size,)
    sources = {
        block + "input_norm": Source(source + "input_layernorm.weight", hidden),
        block + "post_attention_norm": Source(source + "post_attention_layernorm.weight", hidden),
    }
    if attention:
        sources |= _attention(block + "attention/", source + "self_attn.", config)
    else:
        sources |= _delta_net(block + "gdn/", source + "linear_attn.", config)
    if config.experts is not None:
        return sources | _experts(block + "moe/", source + "mlp.", config, has)
    assert config.intermediate_size is not None
    return sources | _feed_forward(block + "mlp/", source + "mlp.", config.intermediate_size, config.hidden_size)


def _attention(block: str, source: str, config: TextConfig) -> dict[str, Source]:
    hidden, head = config.hidden_size, config.head_dim
    # q_proj interleaves, per head, the head's query rows and its gate rows.
    both = (2 * config.query_size, hidden)
    key = (config.key_value_size, hidden)
    return {
        block + "query": Source(source + "q_proj.weight", both, 0, head, 2 * head),
        block + "gate": Source(source + "q_proj.weight", both, head, head, 2 * head),
        block + "key": Source(source + "k_proj.weight", key),
        block + "value": Source(source + "v_proj.weight", key),
        block + "query_norm": Source(source + "q_norm.weight", (head,)),
        block + "key_norm": Source(source + "k_norm.weight", (head,)),
        block + "output": Source(source + "o_proj.weight", (hidden, config.query_size)),
    }


def _delta_net(block: str, source: str, config: TextConfig) -> dict[str, Source]:
    hidden, key, value = config.hidden_size, config.linear_key_size, config.linear_value_size
    heads, channels = config.linear_num_value_heads, config.conv_channels
    packed = source + "in_proj_qkv.weight"
    convolution = (channels, 1, config.linear_conv_kernel_dim)
    return {
        block + "a_log": Source(source + "A_log", (heads,)),
        block + "dt_bias": Source(source + "dt_bias", (heads,)),
        block + "convolution": Source(source + "conv1d.weight", convolution, tap_major=True),
        block + "a_projection": Source(source + "in_proj_a.weight", (heads, hidden)),
        block + "b_projection": Source(source + "in_proj_b.weight", (heads, hidden)),
        block + "query": Source(packed, (channels, hidden)),
        block + "key": Source(packed, (channels, hidden), key),
        block + "value": Source(packed, (channels, hidden), 2 * key),
        block + "z": Source(source + "in_proj_z.weight", (value, hidden)),
        block + "norm": Source(source + "norm.weight", (config.linear_value_head_dim,)),
        block + "output": Source(source + "out_proj.weight", (hidden, value)),
    }


def _feed_forward(block: str, source: str, inner: int, hidden: int) -> dict[str, Source]:
    return {
        block + "gate": Source(source + "gate_proj.weight", (inner, hidden)),
        block + "up": Source(source + "up_proj.weight", (inner, hidden)),
        block + "down": Source(source + "down_proj.weight", (hidden, inner)),
    }


def _experts(block: str, source: str, config: TextConfig, has: Callable[[str], bool]) -> dict[str, Source]:
    experts, hidden = config.experts, config.hidden_size
    assert experts is not None
    count, inner = experts.count, experts.intermediate_size
    sources = {
        block + "router": Source(source + "gate.weight", (count, hidden)),
        block + "shared_score": Source(source + "shared_expert_gate.weight", (1, hidden)),
    }
    sources |= _feed_forward(block + "shared/", source + "shared_expert.", experts.shared_intermediate_size, hidden)
    # Published checkpoints stack all experts in two tensors; `transformers` 5 writes each expert for itself.
    stacked = not has(f"{source}experts.0.gate_proj.weight")
    for index in range(count):
        expert = f"{block}experts/{index}/"
        if stacked:
            both, down = (count, 2 * inner, hidden), (count, hidden, inner)
            sources[expert + "gate"] = Source(source + "experts.gate_up_proj", both, index * 2 * inner)
            sources[expert + "up"] = Source(source + "experts.gate_up_proj", both, index * 2 * inner + inner)
            sources[expert + "down"] = Source(source + "experts.down_proj", down, index * hidden)
        else:
            sources |= _feed_forward(expert, f"{source}experts.{index}.", inner, hidden)
    return sources


def _affine(parameter: str, source: str, shape: tuple[int, int]) -> dict[str, Source]:
    return {parameter: Source(source + ".weight", shape), parameter + "_bias": Source(source + ".bias", shape[:1])}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {', '.join(repr(name) for name in names[:4])}{more}"
