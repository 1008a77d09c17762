"""Reading an importance matrix that llama.cpp wrote: a GGUF file of sums of squares (spec/artifact.md §2.8)."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from engine.artifact.config import TextConfig
from engine.artifact.convert.importance import ImportanceMatrix, Vector
from engine.artifact.convert.sources import CheckpointError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_FLOAT32 = 0
_MAX_COUNT = 1 << 24

_ATTENTION = {"query": "attn_q", "gate": "attn_q", "key": "attn_k", "value": "attn_v", "output": "attn_output"}
_DELTA_NET = {"query": "attn_qkv", "key": "attn_qkv", "value": "attn_qkv", "z": "attn_gate", "output": "ssm_out"}
_DENSE = {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}


def import_importance(path: Path, config: TextConfig) -> ImportanceMatrix:
    """Importance of the parameters of a dense model from the GGUF file at `path`; tensors it lacks are skipped.

    Raises:
        CheckpointError: it is no such file, or a tensor in it does not fit the model.
    """
    tensors = read_tensors(path)
    vectors: dict[str, Vector] = {}
    for layer, kind in enumerate(config.layer_types):
        attention = kind == "full_attention"
        roles = [(f"attention/{role}", tensor) for role, tensor in _ATTENTION.items()] if attention else []
        roles += [] if attention else [(f"gdn/{role}", tensor) for role, tensor in _DELTA_NET.items()]
        roles += [(f"mlp/{role}", tensor) for role, tensor in _DENSE.items()]
        for role, tensor in roles:
            name = f"blk.{layer}.{tensor}.weight"
            sums, counts = tensors.get(f"{name}.in_sum2"), tensors.get(f"{name}.counts")
            if sums is None or counts is None:
                continue
            vector = np.asarray(sums.reshape(-1) / max(float(counts.reshape(-1)[0]), 1.0), np.float32)
            if role == "gdn/output":
                vector = _untile(vector, config, f"{path}: {name}")
            vectors[f"text/layers/{layer}/{role}"] = vector
    if not vectors:
        raise CheckpointError(f"{path} has no tensor like 'blk.0.ffn_up.weight.in_sum2'; it is no importance matrix")
    return ImportanceMatrix(vectors, path.name)


def _untile(vector: Vector, config: TextConfig, where: str) -> Vector:
    # llama.cpp keeps the value heads of one key head apart: its head j * Kh + h is the checkpoint's h * R + j.
    heads, width = config.linear_num_key_heads, config.linear_value_head_dim
    if vector.size != config.linear_value_size:
        raise CheckpointError(f"{where} has {vector.size} channels; the model has {config.linear_value_size}")
    return np.ascontiguousarray(vector.reshape(-1, heads, width).transpose(1, 0, 2)).reshape(-1)


@dataclass(frozen=True)
class _Record:
    name: str
    elements: int
    kind: int
    offset: int


def read_tensors(path: Path) -> dict[str, Vector]:
    """The float32 tensors of a GGUF file (version 2 or 3), flat. Other tensors are left out.

    Raises:
        CheckpointError: it is no GGUF file, or ends early.
    """
    try:
        with path.open("rb") as file:
            return _read_tensors(file)
    except (struct.error, ValueError, UnicodeDecodeError, FileNotFoundError, IsADirectoryError) as error:
        raise CheckpointError(f"{path} is not a GGUF file: {error}") from None


def _read_tensors(file: BinaryIO) -> dict[str, Vector]:
    magic, version, tensors, values = _take(file, "4sIQQ")
    if magic != b"GGUF" or version not in (2, 3) or max(tensors, values) > _MAX_COUNT:
        raise ValueError(f"it starts with {magic!r} version {version}, {tensors} tensors, {values} values")
    alignment = 32
    for _ in range(values):
        key, value = _string(file), _value(file, *_take(file, "I"))
        if key == "general.alignment":
            alignment = value
    records = []
    for _ in range(tensors):
        name = _string(file)
        (dimensions,) = _take(file, "I")
        if dimensions > 8:
            raise ValueError(f"tensor {name!r} has {dimensions} dimensions")
        elements = 1
        for size in _take(file, f"{dimensions}Q"):
            elements *= size
        records.append(_Record(name, elements, *_take(file, "IQ")))
    start = -(-file.tell() // alignment) * alignment
    found: dict[str, Vector] = {}
    for record in records:
        if record.kind == _FLOAT32 and record.elements:
            file.seek(start + record.offset)
            found[record.name] = np.frombuffer(_bytes(file, 4 * record.elements), "<f4")
    return found


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        element, count = _take(file, "IQ")
        if count > _MAX_COUNT:
            raise ValueError(f"an array has {count} elements")
        return [_value(file, element) for _ in range(count)]
    if kind not in _SCALARS:
        raise ValueError(f"a value is of the unknown type {kind}")
    return _take(file, _SCALARS[kind])[0]


def _string(file: BinaryIO) -> str:
    return _bytes(file, *_take(file, "Q")).decode()


def _take(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack("<" + layout, _bytes(file, struct.calcsize("<" + layout)))


def _bytes(file: BinaryIO, size: int) -> bytes:
    if size > 1 << 30:
        raise ValueError(f"a field has {size} bytes")
    data = file.read(size)
    if len(data) != size:
        raise ValueError("it ends early")
    return data
