"""Small artifacts of random content for the tests of reading, verifying and the command."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from engine.artifact.config import parse_text_config
from engine.artifact.floats import swizzle_scales
from engine.artifact.formats import BlockFloat, Direct, Grouped, RowFloat, find_format
from engine.artifact.grouped import pack_grouped, quantize_absmax
from engine.artifact.layouts import geometry
from engine.artifact.parameters import text_parameters
from engine.artifact.writer import ArtifactWriter, PlannedObject, ResourceSpec, TensorSpec, plan_objects

EMPTY_TEXT: dict[str, Any] = {"text": {"config": {}}}

# One small component of every kind but the first draft architecture.
COMPONENTS: dict[str, Any] = {
    "text": {
        "config": {
            "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 64, "vocab_size": 100,
            "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
            "max_position_embeddings": 256, "tie_word_embeddings": False, "rms_norm_eps": 9.999999974752427e-07,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
            "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_num_value_heads": 4,
            "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "intermediate_size": 128,
        },
    },
    "vision": {
        "config": {
            "model_type": "qwen3_5_vision", "depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
            "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 16,
        },
        "target": "text",
    },
    "mtp": {"config": {"architectures": ["Qwen3_5MTP"]}, "target": "text"},
    "dflash2": {
        "config": {
            "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "intermediate_size": 64,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 1,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 1e7},
            "layer_types": ["sliding_attention"], "sliding_window": 64,
            "dflash_config": {
                "target_layer_ids": [0, 1], "mask_token_id": 3, "conv_kernel_size": 2, "conv_group_size": 16,
                "selector_rank": 8, "selector_top_k": 4,
            },
        },
        "target": "text",
    },
}  # fmt: skip


def write_random(
    path: Path, specs: Sequence[TensorSpec | ResourceSpec], random: np.random.Generator, **directory: Any
) -> dict[str, npt.NDArray[np.generic] | bytes]:
    """Write an artifact with legal random content; returns what each object should decode to."""
    plan = plan_objects(specs)
    bindings = {item.id: {"object": item.id} for item in plan if isinstance(item.spec, TensorSpec)}
    fields: dict[str, Any] = {"components": EMPTY_TEXT, "bindings": bindings, **directory}
    expected: dict[str, npt.NDArray[np.generic] | bytes] = {}
    with ArtifactWriter(path, plan, **fields) as writer:
        for index in random.permutation(len(plan)):
            item = plan[index]
            expected[item.id] = write_object(writer, item, random)
        writer.commit()
    return expected


def write_object(
    writer: ArtifactWriter, item: PlannedObject, random: np.random.Generator
) -> npt.NDArray[np.generic] | bytes:
    """Write one object in several pieces, in random order."""
    if isinstance(item.spec, ResourceSpec):
        data = random.bytes(item.bytes)
        writer.write_resource(item.id, data)
        return data
    shape = item.spec.shape
    match find_format(item.spec.format):
        case Direct(dtype=dtype):
            values = random.integers(-99, 99, shape).astype(dtype)
            flat = values.reshape(-1)
            cut = int(random.integers(0, flat.size + 1))
            for begin, end in ((cut, flat.size), (0, cut)):
                if begin < end:
                    writer.write_direct(item.id, flat[begin:end], begin)
            return values
        case Grouped() as format:
            x = random.standard_normal(shape).astype(np.float32)
            codes, scales = quantize_absmax(format.name, x)
            # What a search encoder may store: the same weights with the sign on the scale.
            flip = (np.abs(codes.reshape(*scales.shape, -1)).max(axis=2) <= format.maximum) & (
                random.random(scales.shape) < 0.5
            )
            flip &= scales != 0
            scales = np.where(flip, -scales, scales).astype(np.float16)
            codes = np.where(np.repeat(flip, format.group, axis=1), -codes, codes).astype(np.int8)
            cut = int(random.integers(0, shape[0] + 1))
            for begin, end in ((cut, shape[0]), (0, cut)):
                if begin < end:
                    writer.write_grouped_rows(
                        item.id, begin, pack_grouped(format.name, codes[begin:end], scales[begin:end])
                    )
            product = codes.astype(np.float32) * np.repeat(scales.astype(np.float32), format.group, axis=1)
            return product[:, : shape[1]]
        case BlockFloat():
            return _write_nvfp4(writer, item, shape, random)
        case RowFloat() as format:
            words = random.integers(0, 0x7F, shape).astype(np.uint8)
            row_scales = random.random(shape[0]).astype(ml_dtypes.bfloat16) + ml_dtypes.bfloat16(0.5)
            writer.write_span(item.id, 0, words.reshape(-1))
            writer.write_span(item.id, geometry(format, shape).plane("scales").offset, row_scales.tobytes())
            floats = words.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
            return np.asarray(floats * row_scales.astype(np.float32)[:, np.newaxis])
        case other:
            raise AssertionError(f"no random content for {other}")


def _write_nvfp4(
    writer: ArtifactWriter, item: PlannedObject, shape: tuple[int, ...], random: np.random.Generator
) -> npt.NDArray[np.generic]:
    planes = geometry(find_format("nvfp4"), shape)
    words = random.integers(0, 16, shape).astype(np.uint8)
    scales = random.integers(0, 0x7F, (shape[0], shape[1] // 16)).astype(np.uint8)
    divisor = np.float32(3.7)
    writer.write_span(item.id, planes.plane("divisor").offset, divisor.tobytes())
    writer.write_span(item.id, 0, (words[:, 0::2] | words[:, 1::2] << np.uint8(4)).tobytes())
    writer.write_span(item.id, planes.plane("scales").offset, swizzle_scales(scales).tobytes())
    values = words.view(np.uint8).astype(np.int64)
    magnitude = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)[values % 8] * np.where(values < 8, 1, -1)
    steps = np.repeat(scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32), 16, axis=1)
    return np.asarray((magnitude * steps).astype(np.float32) / divisor, np.float32)


def tokenizer(count: int) -> dict[str, bytes]:
    """The two tokenizer resources, with `count` tokens."""
    vocabulary = {chr(0x21 + index): index for index in range(count)}
    model = {"model": {"type": "BPE", "vocab": vocabulary}, "decoder": {"type": "ByteLevel"}}
    return {"tokenizer.json": json.dumps(model).encode(), "tokenizer_config.json": b"{}"}


def write_model(path: Path, *, limit: int = 32_000_000_000, drop: str | None = None) -> None:
    """Write a complete random artifact of the text component, without the parameter `drop`."""
    config = parse_text_config(COMPONENTS["text"]["config"])
    resources = {**tokenizer(60), "chat_template.jinja": "{{ messages }} ü".encode()}
    specs: list[TensorSpec | ResourceSpec] = [ResourceSpec(role, len(data)) for role, data in resources.items()]
    kinds = ["q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "fp8_e4m3fn_row_bf16"]
    uses = []
    for index, parameter in enumerate(text_parameters(config)):
        if parameter.name != drop:
            format = kinds[index % 5] if parameter.quantizable else parameter.direct
            specs.append(TensorSpec(parameter.name, parameter.shape, format))
            inputs = parameter.inputs
            uses += [{"parameter": parameter.name, "input": name, "activation_policy": "A16Only"} for name in inputs]
    plan = plan_objects(specs)
    bindings = {item.id: {"object": item.id} for item in plan if isinstance(item.spec, TensorSpec)}
    components = {"text": {**COMPONENTS["text"], "resources": {role: role for role in resources}}}
    random = np.random.default_rng(5)
    with ArtifactWriter(
        path, plan, components=components, bindings=bindings, uses=uses, metadata={"name": "small"}, limit=limit
    ) as writer:
        for item in plan:
            if isinstance(item.spec, ResourceSpec):
                writer.write_resource(item.id, resources[item.id])
            else:
                write_object(writer, item, random)
        writer.commit()
