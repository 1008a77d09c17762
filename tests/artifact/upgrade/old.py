"""Files of version 2: which objects the official ones have, and small ones of the same kinds with random content."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.artifact import Artifact
from engine.artifact.directory import Tensor
from engine.artifact.layouts import align_up, encoded_size
from engine.artifact.planning import ResourceSpec, TensorSpec
from tests.artifact.builder import write_random

FORMATS = {
    "bf16": "BF16", "fp32": "FP32", "int32": "I32", "q4_g64_fp16": "Q4G64_F16S", "q5_g64_fp16": "Q5G64_F16S",
    "q6_g64_fp16": "Q6G64_F16S", "q8_g32_fp16": "W8G32_F16S", "nvfp4": "NVFP4",
    "fp8_e4m3fn_row_bf16": "FP8_E4M3FN_ROW_BF16S",
}  # fmt: skip
LAYOUTS = {
    "bf16": "contiguous-le-v1", "fp32": "contiguous-le-v1", "int32": "contiguous-le-v1",
    "nvfp4": "blockscale-k16-m128x4-v1", "fp8_e4m3fn_row_bf16": "row-scale-v1",
}  # fmt: skip
Q4, Q5, Q6, Q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"
ROLES = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
    "preprocessor_config.json", "video_preprocessor_config.json",
)  # fmt: skip


@dataclass(frozen=True)
class Old:
    """An object of version 2 and the parameters it holds: name and rows, one behind the other."""

    name: str
    format: str
    columns: int | None
    holds: tuple[tuple[str, int], ...]
    extra: tuple[tuple[str, int, int], ...] = ()  # further parameters: name, first and last row

    @property
    def shape(self) -> tuple[int, ...]:
        rows = sum(count for _, count in self.holds)
        return (rows,) if self.columns is None else (rows, self.columns)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model, by the letters of spec/artifact.md §4.2."""

    vocabulary: int
    hidden: int
    layers: int
    query: int
    key: int
    head: int
    linear_key: int
    linear_value: int
    linear_heads: int
    linear_head: int
    inner: int = 0
    experts: int = 0
    expert_inner: int = 0
    proposal: int = 131072
    vision_layers: int = 27
    vision: int = 1152
    vision_inner: int = 4304
    patch: int = 1536
    positions: int = 2304
    draft: str = ""
    draft_layers: int = 0
    draft_taps: int = 0
    draft_query: int = 4096
    draft_key: int = 1024
    draft_head: int = 128
    draft_inner: int = 0
    rank: int = 256
    vocabulary_format: tuple[str, str] = (Q6, Q6)
    nvfp4: str = ""  # "", or which of the two official mixes
    q6_down: tuple[int, ...] = field(default=())


def objects(s: Sizes) -> Iterator[Old]:
    """All tensors in the order of §4.4 and §4.11, without divisors."""

    def vector(name: str, size: int, holds: str = "", format: str = "bf16") -> Old:
        return Old(name, format, None, ((holds or name, size),))

    def matrix(name: str, format: str, columns: int, *holds: tuple[str, int]) -> Old:
        return Old(name, format, columns, holds)

    yield matrix("text/token_embedding", s.vocabulary_format[0], s.hidden, ("text/token_embedding", s.vocabulary))
    for layer in range(s.layers):
        yield from block(s, f"text/layers/{layer}/", f"text/layers/{layer}/", layer)
    yield vector("text/final_norm", s.hidden)
    yield matrix("text/output_head", s.vocabulary_format[1], s.hidden, ("text/output_head", s.vocabulary))
    yield matrix("text/draft_head", Q4, s.hidden, ("proposal/head", s.proposal))
    yield vector("text/draft_head_token_ids", s.proposal, "proposal/token_ids", "int32")
    yield matrix("mtp/input_projection", Q8, 2 * s.hidden, ("mtp/input_projection", s.hidden))
    for name in ("mtp/embedding_norm", "mtp/hidden_norm", "mtp/final_norm"):
        yield vector(name, s.hidden)
    yield from block(s, "mtp/layer/", "mtp/layers/0/", None)
    yield from vision(s)
    if s.draft:
        yield from draft(s, s.draft)


def block(s: Sizes, old: str, new: str, layer: int | None) -> Iterator[Old]:
    """One decoder block; `layer` None is MTP's."""
    eight = layer is None or s.experts > 0
    four, five = (Q8, Q8) if eight else (Q4, Q5)

    def one(name: str, format: str, columns: int | None, rows: int, holds: str | None = None) -> Old:
        return Old(old + name, format, columns, ((new + (holds or name), rows),))

    def some(name: str, format: str, columns: int | None, *holds: tuple[str, int]) -> Old:
        return Old(old + name, format, columns, tuple((new + part, rows) for part, rows in holds))

    def four_way(first: int) -> str | None:
        """The format of a parent of four in the NVFP4 mixes, from layer `first` on; else bf16 or imported FP8."""
        if not s.nvfp4 or layer is None:
            return Q8 if eight else None
        if s.nvfp4 == "qwen3.8-27b":
            return "fp8_e4m3fn_row_bf16"
        return "nvfp4" if layer >= first else "bf16"

    def output(exceptions: tuple[int, ...], mlp: bool = False) -> str:
        if not s.nvfp4 or layer is None:
            return five
        if s.nvfp4 == "qwen3.8-27b":
            return "nvfp4" if mlp and layer < s.layers - 8 else "fp8_e4m3fn_row_bf16"
        return "bf16" if layer in exceptions else "nvfp4"

    yield one("input_norm", "bf16", None, s.hidden)
    if layer is None or layer % 4 == 3:
        query, key = ("attention/query", s.query), ("attention/key", s.key)
        gate, value = ("attention/gate", s.query), ("attention/value", s.key)
        if (format := four_way(27 if s.layers == 64 else 4)) is not None:
            yield some("attention/query_key_gate_value", format, s.hidden, query, key, gate, value)
        else:
            yield some("attention/query_key", four, s.hidden, query, key)
            yield some("attention/gate_value", five, s.hidden, gate, value)
        yield one("attention/query_norm", "bf16", None, s.head)
        yield one("attention/key_norm", "bf16", None, s.head)
        yield one("attention/output", output((3, 7) if s.layers == 64 else (3,)), s.query, s.hidden)
    else:
        yield one("gdn/a_log", "fp32", None, s.linear_heads)
        yield one("gdn/dt_bias", "fp32", None, s.linear_heads)
        channels = 2 * s.linear_key + s.linear_value
        yield one("gdn/convolution", "bf16", channels, 4)
        a, b = ("gdn/a_projection", s.linear_heads), ("gdn/b_projection", s.linear_heads)
        if s.experts or s.nvfp4 == "qwen3.8-27b":
            yield some("gdn/a_b_projection", "bf16", s.hidden, a, b)
        else:
            yield one("gdn/a_projection", "bf16", s.hidden, s.linear_heads)
            yield one("gdn/b_projection", "bf16", s.hidden, s.linear_heads)
        query, key = ("gdn/query", s.linear_key), ("gdn/key", s.linear_key)
        value, z = ("gdn/value", s.linear_value), ("gdn/z", s.linear_value)
        if (format := four_way(0)) is not None:
            yield some("gdn/query_key_value_z", format, s.hidden, query, key, value, z)
        else:
            yield some("gdn/query_key", four, s.hidden, query, key)
            yield some("gdn/value_z", five, s.hidden, value, z)
        yield one("gdn/norm", "bf16", None, s.linear_head)
        yield one("gdn/output", output((4,) if s.layers == 64 else ()), s.linear_value, s.hidden)
    yield one("post_attention_norm", "bf16", None, s.hidden)
    if not s.experts:
        wide = output((), mlp=True) if s.nvfp4 and layer is not None else four
        yield some("mlp/gate_up", wide, s.hidden, ("mlp/gate", s.inner), ("mlp/up", s.inner))
        yield one("mlp/down", output((), mlp=True), s.inner, s.hidden)
        return
    yield some("moe/router_shared_gate", "bf16", s.hidden, ("moe/router", s.experts), ("moe/shared_score", 1))
    inner = s.expert_inner
    gate_up = [(f"moe/experts/{e}/{part}", inner) for e in range(s.experts) for part in ("gate", "up")]
    yield some("moe/routed_gate_up", Q8 if layer is None else Q4, s.hidden, *gate_up)
    narrow = Q8 if layer is None else Q6 if layer in s.q6_down else Q5
    yield some("moe/routed_down", narrow, inner, *((f"moe/experts/{e}/down", s.hidden) for e in range(s.experts)))
    yield some("moe/shared_gate_up", Q8, s.hidden, ("moe/shared/gate", inner), ("moe/shared/up", inner))
    yield one("moe/shared_down", Q8, inner, s.hidden, "moe/shared/down")


def vision(s: Sizes) -> Iterator[Old]:
    def plain(name: str, format: str, columns: int | None, rows: int, holds: str = "") -> Old:
        return Old(name, format, columns, ((holds or name, rows),))

    yield plain("vision/patch_embedding", Q6, s.patch, s.vision)
    yield plain("vision/patch_embedding_bias", "bf16", None, s.vision)
    yield plain("vision/position_embedding", "bf16", s.vision, s.positions)
    for layer in range(s.vision_layers):
        b = f"vision/layers/{layer}/"
        for norm in ("norm1", "norm2"):
            for part in ("weight", "bias"):
                yield plain(f"{b}{norm}/{part}", "bf16", None, s.vision, f"{b}{norm}_{part}")
        parts = ("query", "key", "value")
        yield Old(f"{b}attention/qkv", Q4, s.vision, tuple((f"{b}attention/{part}", s.vision) for part in parts))
        yield Old(
            f"{b}attention/qkv_bias", "bf16", None, tuple((f"{b}attention/{part}_bias", s.vision) for part in parts)
        )
        yield plain(f"{b}attention/output", Q5, s.vision, s.vision)
        yield plain(f"{b}attention/output_bias", "bf16", None, s.vision)
        yield plain(f"{b}mlp/fc1", Q4, s.vision, s.vision_inner)
        yield plain(f"{b}mlp/fc1_bias", "bf16", None, s.vision_inner)
        yield plain(f"{b}mlp/fc2", Q5, s.vision_inner, s.vision)
        yield plain(f"{b}mlp/fc2_bias", "bf16", None, s.vision)
    yield plain("vision/merger/norm/weight", "bf16", None, s.vision, "vision/merger/norm_weight")
    yield plain("vision/merger/norm/bias", "bf16", None, s.vision, "vision/merger/norm_bias")
    yield plain("vision/merger/fc1", Q8, 4 * s.vision, 4 * s.vision)
    yield plain("vision/merger/fc1_bias", "bf16", None, 4 * s.vision)
    yield plain("vision/merger/fc2", Q8, 4 * s.vision, s.hidden)
    yield plain("vision/merger/fc2_bias", "bf16", None, s.hidden)


def draft(s: Sizes, d: str) -> Iterator[Old]:
    def plain(name: str, format: str, columns: int | None, rows: int) -> Old:
        return Old(name, format, columns, ((name, rows),))

    yield plain(f"{d}/feature_projection", Q8, s.draft_taps * s.hidden, s.hidden)
    yield plain(f"{d}/context_norm", "bf16", None, s.hidden)
    yield plain(f"{d}/final_norm", "bf16", None, s.hidden)
    query, key = s.draft_query, s.draft_key
    for layer in range(s.draft_layers):
        b = f"{d}/layers/{layer}/"
        yield plain(f"{b}input_norm", "bf16", None, s.hidden)
        yield plain(f"{b}post_attention_norm", "bf16", None, s.hidden)
        yield Old(
            f"{b}attention/query_key_value", Q8, s.hidden,
            ((f"{b}attention/query", query), (f"{b}attention/key", key), (f"{b}attention/value", key)),
            (
                (f"{b}attention/context_key", query, query + key),
                (f"{b}attention/context_value", query + key, query + 2 * key),
            ),
        )  # fmt: skip
        yield plain(f"{b}attention/query_norm", "bf16", None, s.draft_head)
        yield plain(f"{b}attention/key_norm", "bf16", None, s.draft_head)
        yield plain(f"{b}attention/output", Q8, query, s.hidden)
        yield Old(f"{b}mlp/gate_up", Q8, s.hidden, ((f"{b}mlp/gate", s.draft_inner), (f"{b}mlp/up", s.draft_inner)))
        yield plain(f"{b}mlp/down", Q8, s.draft_inner, s.hidden)
        if d == "dflash2":
            for branch in ("attention_conv", "mlp_conv"):
                # [2, 2, H]: `columns` stands for everything behind the first axis.
                yield plain(f"{b}{branch}/base_kernel", "bf16", 2 * s.hidden, 2)
                yield plain(f"{b}{branch}/kernel_projection", "bf16", s.hidden, 4 * s.hidden // 16)
    if d == "dflash2":
        yield plain(f"{d}/candidate_selector/hidden_projection", "bf16", s.hidden, s.rank)
        for name in ("predecessor_codebook", "successor_codebook"):
            yield plain(f"{d}/candidate_selector/{name}", "bf16", s.rank, s.vocabulary)


SITES = {
    "attention/query_key_gate_value": "attention/input_projection",
    "gdn/query_key_value_z": "gdn/input_projection",
    "attention/output": "attention/output_projection",
    "gdn/output": "gdn/output_projection",
    "mlp/gate_up": "mlp/gate_up_projection",
    "mlp/down": "mlp/down_projection",
}


def site(name: str) -> str:
    """Name of the divisor of an NVFP4 object."""
    for role, place in SITES.items():
        if name.endswith("/" + role):
            return f"{name.removesuffix(role)}{place}/input_scale_divisor"
    raise AssertionError(name)


def specs(s: Sizes, resources: dict[str, int]) -> list[TensorSpec | ResourceSpec]:
    """Every object of the file in order; each NVFP4 object is followed by its divisor."""
    listed: list[TensorSpec | ResourceSpec] = [ResourceSpec(f"frontend/{role}", resources[role]) for role in ROLES]
    for item in objects(s):
        shape = item.shape if not item.name.endswith("base_kernel") else (2, 2, s.hidden)
        listed.append(TensorSpec(item.name, shape, item.format))
        if item.format == "nvfp4":
            listed.append(TensorSpec(site(item.name), (), "fp32"))
    return listed


def old_directory(
    model_id: str, weights_id: str, listed: list[TensorSpec | ResourceSpec]
) -> tuple[dict[str, Any], int]:
    """The directory of a version 2 file with the objects one behind the other, and its payload bytes."""
    records: list[dict[str, Any]] = []
    position = 0
    for spec in listed:
        if isinstance(spec, ResourceSpec):
            record: dict[str, Any] = {"name": spec.id, "kind": "resource", "encoding": "raw-bytes-v1"}
            size = spec.size
        else:
            position = align_up(position, 256)
            size = encoded_size(spec.format, spec.shape)
            record = {
                "name": spec.id, "kind": "tensor", "shape": list(spec.shape), "format": FORMATS[spec.format],
                "layout": LAYOUTS.get(spec.format, "row-split-k128-v1"),
            }  # fmt: skip
        records.append({**record, "offset": position, "bytes": size})
        position += size
    return {"identity": {"model_id": model_id, "weights_id": weights_id}, "objects": records}, position


def write_head(path: Path, directory: dict[str, Any], version: int = 2) -> int:
    """Write header and directory; returns where the payload starts."""
    text = json.dumps(directory, separators=(",", ":")).encode()
    start = align_up(16 + len(text), 4096)
    with path.open("wb") as file:
        file.write(b"NINFER\0" + bytes([version]) + len(text).to_bytes(8, "little") + text)
        file.truncate(start)
    return start


def write_old(
    path: Path, model_id: str, weights_id: str, s: Sizes, random: np.random.Generator
) -> dict[str, npt.NDArray[np.generic] | bytes]:
    """Write a version 2 file of random legal content; returns what each object decodes to."""
    listed = specs(s, dict.fromkeys(ROLES, 100) | {"tokenizer.json": 333})
    directory, size = old_directory(model_id, weights_id, listed)
    # A version 3 file with the same objects in the same places has the same payload.
    twin = path.with_suffix(".twin")
    values = write_random(twin, listed, random)
    with Artifact.open(twin) as artifact:
        places = {item.id: item.offset for item in artifact.directory.objects.values()}
        assert places == {record["name"]: record["offset"] for record in directory["objects"]}
        payload = bytearray(artifact.payload.read(0, size))
        for item in artifact.directory.objects.values():
            if item.id.endswith("/input_scale_divisor"):
                assert isinstance(item, Tensor)
                value = np.float32(random.random() + 0.5)
                payload[item.offset : item.offset + 4] = value.tobytes()
                values[item.id] = np.array(value)
    twin.unlink()
    write_head(path, directory)
    with path.open("ab") as file:
        file.write(payload)
    return values
