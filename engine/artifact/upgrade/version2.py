"""Reading what an artifact of version 2 says about itself (spec/artifact.md §1.5, §1.6)."""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.artifact.formats import OLD_NAMES, find_format
from engine.artifact.header import ENTRY_MAGIC, MAX_JSON_BYTES, PAGE
from engine.artifact.layouts import TENSOR_ALIGNMENT, align_up, find_layout, geometry
from engine.artifact.planning import PlannedObject, ResourceSpec, TensorSpec
from engine.artifact.strict_json import parse_json, short
from engine.exits import ArtifactError

HEADER_BYTES = 16
MAGIC = ENTRY_MAGIC[:7] + b"\x02"
DIVISOR = "/input_scale_divisor"
"""How the names of activation divisors end."""

_LAYOUTS = {
    "contiguous-le-v1": "contiguous_le_v1",
    "row-split-k128-v1": "row_split_k128_v1",
    "blockscale-k16-m128x4-v1": "block_scale_k16_m128x4_v1",
    "row-scale-v1": "row_scale_v1",
}
_TENSOR = {"name", "kind", "shape", "format", "layout", "offset", "bytes"}
_RESOURCE = {"name", "kind", "encoding", "offset", "bytes"}


@dataclass(frozen=True)
class OldArtifact:
    """An open file of version 2: identity, and objects by name in payload order, spelled as in version 3."""

    model_id: str
    weights_id: str
    objects: Mapping[str, PlannedObject]
    payload_start: int
    payload_bytes: int


def read_old(descriptor: int) -> OldArtifact:
    """Read and check header, directory and divisors of an open file.

    Raises:
        ArtifactError: it is not an artifact of version 2, or not a consistent one.
        OSError: the file cannot be read.
    """
    size = os.fstat(descriptor).st_size
    json_bytes = _header(os.pread(descriptor, HEADER_BYTES, 0), size)
    start = align_up(HEADER_BYTES + json_bytes, PAGE)
    if start > size:
        raise ArtifactError(f"the file has {size} bytes; its payload starts at {start}")
    try:
        root = parse_json(os.pread(descriptor, json_bytes, HEADER_BYTES))
    except RecursionError:
        raise ArtifactError("directory: values are nested too deeply") from None
    _closed("the directory", root, {"identity", "objects"})
    _closed("the identity", root["identity"], {"model_id", "weights_id"})
    model_id, weights_id = root["identity"]["model_id"], root["identity"]["weights_id"]
    if not isinstance(model_id, str) or not isinstance(weights_id, str):
        raise ArtifactError(f"the identity is {short(root['identity'])}, not two names")
    objects = _objects(root["objects"], size - start)
    for name, item in objects.items():
        if name.endswith(DIVISOR):
            _check_divisor(item, os.pread(descriptor, 4, start + item.offset))
    return OldArtifact(model_id, weights_id, objects, start, size - start)


def _header(data: bytes, size: int) -> int:
    magic = data[:8]
    if magic[:7] == ENTRY_MAGIC[:7] and len(magic) == 8 and magic != MAGIC:
        version = magic[7]
        if version == 3:
            raise ArtifactError("the file is an artifact of version 3 already; nothing is to be upgraded")
        if version == 1:
            raise ArtifactError(
                "the file is an artifact of version 1, which cannot be upgraded: download the model again, or convert "
                "it from its checkpoint"
            )
        raise ArtifactError(f"the file is an artifact of version {version}; only version 2 can be upgraded")
    if magic != MAGIC:
        raise ArtifactError(f"the file is not an artifact: it starts with {magic.hex(' ')}, not {MAGIC.hex(' ')}")
    json_bytes = int.from_bytes(data[8:16], "little")
    if len(data) < HEADER_BYTES or not 0 < json_bytes <= min(size - HEADER_BYTES, MAX_JSON_BYTES):
        raise ArtifactError(f"the directory is said to have {json_bytes} bytes; the file has {size} in all")
    return json_bytes


def _objects(records: Any, payload_bytes: int) -> dict[str, PlannedObject]:
    if not isinstance(records, list):
        raise ArtifactError(f"objects is {short(records)}, not a list")
    objects: dict[str, PlannedObject] = {}
    position = 0
    for record in records:
        item = _object(record)
        if item.id in objects:
            raise ArtifactError(f"object {item.id!r} appears twice")
        if item.offset < position:
            raise ArtifactError(f"object {item.id!r} starts at {item.offset}, before the end of the one before it")
        position = item.offset + item.bytes
        if position > payload_bytes:
            raise ArtifactError(
                f"object {item.id!r} ends at {position}, beyond the payload of {payload_bytes} bytes; "
                "the file has been cut off"
            )
        objects[item.id] = item
    return objects


def _object(record: Any) -> PlannedObject:
    if not isinstance(record, dict) or not isinstance(record.get("name"), str) or not record["name"]:
        raise ArtifactError(f"an object is {short(record)}, not a record with a name")
    name = record["name"]
    where = f"object {name!r}"
    tensor = record.get("kind") == "tensor"
    _closed(where, record, _TENSOR if tensor else _RESOURCE)
    offset, size = record["offset"], record["bytes"]
    if type(offset) is not int or type(size) is not int or offset < 0 or size <= 0:
        raise ArtifactError(f"{where} lies at {short(offset)} with {short(size)} bytes")
    if not tensor:
        if record["kind"] != "resource" or record["encoding"] != "raw-bytes-v1":
            raise ArtifactError(f"{where} is a {short(record['kind'])} of encoding {short(record['encoding'])}")
        return PlannedObject(ResourceSpec(name, size), offset, size)
    shape = record["shape"]
    if not isinstance(shape, list):
        raise ArtifactError(f"{where} has the shape {short(shape)}")
    try:
        if not isinstance(record["layout"], str) or record["format"] not in OLD_NAMES:
            raise ArtifactError(f"unknown format {short(record['format'])}; known: {', '.join(OLD_NAMES)}")
        format = find_format(OLD_NAMES[record["format"]])
        find_layout(_LAYOUTS.get(record["layout"], str(record["layout"])), format)
        expected = geometry(format, shape).bytes
    except ArtifactError as error:
        raise ArtifactError(f"{where}: {error}") from None
    if size != expected:
        raise ArtifactError(f"{where} has {size} bytes; {record['format']} {shape} takes exactly {expected}")
    if offset % TENSOR_ALIGNMENT:
        raise ArtifactError(f"{where} starts at {offset}, which is not a multiple of {TENSOR_ALIGNMENT}")
    return PlannedObject(TensorSpec(name, tuple(shape), format.name), offset, size)


def _check_divisor(item: PlannedObject, data: bytes) -> None:
    if not isinstance(item.spec, TensorSpec) or item.spec.format != "fp32" or item.spec.shape:
        raise ArtifactError(f"object {item.id!r} is not one fp32 scalar")
    (value,) = struct.unpack("<f", data)
    if not (math.isfinite(value) and value > 0):
        raise ArtifactError(f"object {item.id!r} is {value!r}, not finite and positive")


def _closed(where: str, record: Any, keys: set[str]) -> None:
    if not isinstance(record, dict) or record.keys() != keys:
        found = sorted(record) if isinstance(record, dict) else short(record)
        raise ArtifactError(f"{where} has {found}; version 2 has exactly {sorted(keys)}")
