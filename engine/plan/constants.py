"""What cannot be derived from shapes: workspace, graphs, contexts. One record an engine.

`REFERENCE` reproduces the published figures of the seed's engine and serves as the check of the arithmetic. `TORCH` and
`TORCH_CPU` describe the engine in this repository, and are what the appliance plans with.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engine.exits import ConfigurationError
from engine.plan.geometry import Geometry
from engine.plan.settings import Settings
from engine.plan.speculation import Speculation

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Bytes that an engine takes beside pools whose size follows from shapes.

    `workspace` takes (geometry, settings, max_context); `graphs` takes (settings, max_context, lanes). `origin` says
    where the figures come from and is printed with every plan.
    """

    name: str
    origin: str
    context_bytes: int
    headroom_bytes: int
    spare_images: int | None  # state images beside one a lane, when the settings name no number; None: one a lane
    logit_bytes: int
    logit_columns: Callable[[Speculation], int]
    workspace: Callable[[Geometry, Settings, int], int]
    graphs: Callable[[Settings, int, int], int]
    scalars: Callable[[Geometry, Settings], int]
    vision_bridge_bytes: int = 10 * MIB
    history_bytes: int = 2  # one value of the convolution history
    tail_hidden: bool = True  # whether a state image keeps the last hidden column


# The seed's engine (spec/memory-and-fit.md §1.2-1.4, §2.2). Keys are hidden sizes: 5120 is 27B, 2048 is 35B-A3B.

_WORKSPACE_PER_TOKEN = {5120: 159_981_568 // 1024, 2048: 109_453_312 // 1024}
_CUBLAS = {
    5120: ((2048, 543.0), (4096, 661.2)),
    2048: ((512, 240.0 + 109_453_312 / 2 / MIB), (4096, 240.0 + 109_453_312 / 2 / MIB)),
}
_SCALARS = {
    (5120, "none"): 13_004,
    (5120, "mtp"): 13_004 + 116_224,
    (5120, "dflash2"): 13_004 + 90_624,
    (2048, "none"): 6_860,
    (2048, "mtp"): 6_860 + 48_640,
    (2048, "dflash"): 6_860 + 24_064,
}


def _reference_workspace(geometry: Geometry, settings: Settings, max_context: int) -> int:
    """Published at chunk 1,024; proportional to the chunk, which 35B runs at chunk 512 confirm to 0.01 GiB."""
    del max_context
    hidden = _published(geometry)
    if not settings.prefill_cublas:
        return _WORKSPACE_PER_TOKEN[hidden] * settings.prefill_chunk
    (low, low_mib), (high, high_mib) = _CUBLAS[hidden]
    return round((low_mib + (high_mib - low_mib) * (settings.prefill_chunk - low) / (high - low)) * MIB)


def _reference_graphs(settings: Settings, max_context: int, lanes: int) -> int:
    """Spec §1.4. Several lanes with a block drafter are published only in parts: we take the one-lane figure each."""
    match settings.speculation.backend:
        case "none":
            return 12 * MIB * lanes
        case "mtp":
            small = 64 if settings.speculation.drafts >= 3 else 16
            return (86 if max_context > 4096 else small) * MIB * lanes
        case "dflash2":
            return (288 if max_context <= 8192 else 384) * MIB * lanes
        case "dflash":
            return 160 * MIB * lanes


def _reference_columns(speculation: Speculation) -> int:
    return speculation.drafts + (3 if speculation.backend == "mtp" else 2)


def _reference_scalars(geometry: Geometry, settings: Settings) -> int:
    key = (_published(geometry), settings.speculation.backend)
    if key not in _SCALARS:
        raise ConfigurationError(f"the reference constants have no figure for {key[1]} at hidden size {key[0]}")
    return _SCALARS[key]


def _published(geometry: Geometry) -> int:
    if geometry.hidden_size not in _WORKSPACE_PER_TOKEN:
        raise ConfigurationError(
            f"the reference constants know hidden sizes {sorted(_WORKSPACE_PER_TOKEN)}, not {geometry.hidden_size}"
        )
    return geometry.hidden_size


REFERENCE = Constants(
    name="reference",
    origin="published figures of the seed's engine",
    context_bytes=276 * MIB,  # 24 GiB less 16.67 GiB of weights less the 7.06 GiB published as available
    headroom_bytes=GIB,
    spare_images=None,
    logit_bytes=2,
    logit_columns=_reference_columns,
    workspace=_reference_workspace,
    graphs=_reference_graphs,
    scalars=_reference_scalars,
)


# Our engine.


def _fused_workspace(geometry: Geometry, settings: Settings, max_context: int) -> int:
    """One prefill chunk with fused kernels: bf16 columns of the widest of the three kinds of layer, beside four
    columns of the residual width. Comes within 10 % of every published workspace, and does not grow with context.
    """
    del max_context
    attention = (4 * geometry.query_heads + 4 * geometry.key_value_heads) * geometry.head_dim
    linear = 2 * geometry.conv_channels + 4 * geometry.linear_value_heads * geometry.linear_value_dim
    routed = 2 * geometry.experts_per_token * geometry.hidden_size
    dense = 3 * geometry.feed_forward_size + routed
    return 2 * settings.prefill_chunk * (4 * geometry.hidden_size + max(attention, linear, dense))


def _eager_workspace(geometry: Geometry, settings: Settings, max_context: int) -> int:
    """One prefill chunk of the plain torch operations in single precision, the widest of the three kinds of layer.

    Attention reads its history as single precision copies of keys and values, under a mask of (query rows of one KV
    head) x context, one byte each and as much again and a half on the way. DeltaNet holds the copies of the chunked
    form and its triangular systems of 64 columns. The feed-forward layer holds gate, up and their product, and for
    experts the grouped columns, twice widened. An eighth is added for what the allocator does not give back.
    """
    chunk, context = min(settings.prefill_chunk, max_context), max_context
    heads, head_dim = geometry.query_heads, geometry.head_dim
    group = heads // geometry.key_value_heads
    attention = chunk * (4 * heads + 4 * geometry.key_value_heads) * head_dim * 4
    attention += context * 2 * geometry.key_value_heads * head_dim * 4 + context * chunk * group * 5 // 2
    wide = 7 * geometry.linear_key_dim + 6 * geometry.linear_value_dim + 4 * 64
    linear = chunk * 4 * (geometry.linear_value_heads * wide + 3 * geometry.conv_channels)
    dense = chunk * 4 * (3 * geometry.feed_forward_size + 5 * geometry.experts_per_token * geometry.hidden_size)
    return (4 * chunk * geometry.hidden_size * 4 + max(attention, linear, dense)) * 9 // 8


def _torch_graphs(settings: Settings, max_context: int, lanes: int) -> int:
    """Plain decoding captures nothing. Speculation is charged the ceiling that graph capture must stay under."""
    del max_context, lanes
    return 0 if settings.speculation.backend == "none" else 384 * MIB


def _torch_columns(speculation: Speculation) -> int:
    """Logits, the sorted or penalised copy, and the probabilities, for each column of a round."""
    return 3 * (speculation.drafts + 1)


def _torch_scalars(geometry: Geometry, settings: Settings) -> int:
    del geometry, settings
    return 64 * KIB  # ids, positions, seeds, and 256-byte alignment of every region


TORCH = Constants(
    name="torch",
    origin="computed from shapes for fused kernels; context and graphs are projections for sm_86, not measurements",
    context_bytes=512 * MIB,
    headroom_bytes=GIB,
    spare_images=0,
    logit_bytes=4,
    logit_columns=_torch_columns,
    workspace=_fused_workspace,
    graphs=_torch_graphs,
    scalars=_torch_scalars,
    tail_hidden=False,
)

TORCH_CPU = Constants(
    name="torch-cpu",
    origin="computed for plain torch in single precision; peak of a prefill measured on x86-64, never above",
    context_bytes=512 * MIB,
    headroom_bytes=GIB,
    spare_images=0,
    logit_bytes=4,
    logit_columns=_torch_columns,
    workspace=_eager_workspace,
    graphs=_torch_graphs,
    scalars=_torch_scalars,
    history_bytes=4,
    tail_hidden=False,
)

RECORDS = {record.name: record for record in (REFERENCE, TORCH, TORCH_CPU)}
