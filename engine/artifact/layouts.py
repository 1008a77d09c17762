"""The storage layouts: where the planes of an encoded tensor lie inside its object (spec/artifact.md §3).

Every layout here is made of planes, and every plane is made of equal units that hold one row or a tile of rows, so
a slice of rows is one byte span in each plane. Padding between planes is part of the layout and is zero.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from engine.artifact.formats import BlockFloat, Direct, Format, GgmlBlock, GgmlRecord, Grouped, RowFloat, find_format
from engine.exits import ArtifactError

TENSOR_ALIGNMENT = 256
"""Bytes: the start of every tensor object, and of every plane but the last small ones inside it."""

MAX_RANK = 16
MAX_U64 = 2**64 - 1

_LAYOUTS = {kind.layout for kind in (Direct, Grouped, BlockFloat, RowFloat, GgmlBlock, GgmlRecord)}


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is at least `value`."""
    return -(-value // alignment) * alignment


@dataclass(frozen=True)
class Plane:
    """Bytes `[offset, offset + bytes)` of an object: units of `unit_bytes`, each holding `unit_rows` rows.

    `unit_rows` 0 means the plane belongs to the whole matrix and cannot be sliced.
    """

    name: str
    offset: int
    bytes: int
    unit_rows: int
    unit_bytes: int

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """Offsets in the object of the bytes of rows `[begin, end)`, widened to whole units."""
        if self.unit_rows == 0:
            return self.offset, self.offset + self.bytes
        first, last = begin // self.unit_rows, -(-end // self.unit_rows)
        return self.offset + first * self.unit_bytes, self.offset + last * self.unit_bytes


@dataclass(frozen=True)
class Geometry:
    """The planes of one encoded tensor, in order, and its exact size.

    `rows` is the first axis (1 for a scalar) and `columns` the elements of one row: the unit in which tensors are
    sliced, streamed and decoded.
    """

    planes: tuple[Plane, ...]
    bytes: int
    rows: int
    columns: int

    def plane(self, name: str) -> Plane:
        """The plane called `name`; KeyError when the layout has none."""
        for plane in self.planes:
            if plane.name == name:
                return plane
        raise KeyError(name)

    def fillers(self) -> Iterator[tuple[int, int]]:
        """Offsets `[begin, end)` of the zero bytes between planes."""
        position = 0
        for plane in self.planes:
            if position < plane.offset:
                yield position, plane.offset
            position = plane.offset + plane.bytes
        if position < self.bytes:
            yield position, self.bytes


def encoded_size(format: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor of `shape` in `format`, stored in the one layout of that format.

    Raises:
        ArtifactError: unknown format, or the layout cannot hold this shape.
    """
    return geometry(find_format(format), shape).bytes


def find_layout(layout: str, format: Format) -> None:
    """Check that `layout` is known and is the one of `format`.

    Raises:
        ArtifactError: it is not; the message names what would be right.
    """
    if layout == format.layout:
        return
    if layout == "row_split_panel4_v1":
        raise ArtifactError(f"layout {layout!r} is a load-time permutation, never a file layout; use {format.layout!r}")
    if layout not in _LAYOUTS:
        raise ArtifactError(f"unknown layout {layout!r}; format {format.name!r} is stored as {format.layout!r}")
    raise ArtifactError(f"layout {layout!r} does not hold format {format.name!r}, which is stored as {format.layout!r}")


def geometry(format: Format, shape: Sequence[int]) -> Geometry:
    """Planes and size of a tensor of `shape` in `format` (formulas of §3.1 to §3.5).

    Raises:
        ArtifactError: the layout cannot hold this shape.
    """
    if len(shape) > MAX_RANK or any(type(size) is not int or size <= 0 for size in shape) or prod(shape) > MAX_U64:
        raise ArtifactError(f"shape {_text(shape)} is not 0 to {MAX_RANK} positive sizes of at most 2^64-1 elements")
    rows = shape[0] if shape else 1
    columns = prod(shape[1:])
    planes = _planes(format, shape, rows, columns)
    return Geometry(tuple(planes), planes[-1].offset + planes[-1].bytes, rows, columns)


def _planes(format: Format, shape: Sequence[int], rows: int, columns: int) -> list[Plane]:
    match format:
        case Direct():
            return [_rows("words", 0, rows, columns * format.word_bytes)]
        case Grouped():
            _matrix(format, shape)
            return _grouped(format, rows, columns)
        case BlockFloat():
            _matrix(format, shape)
            if rows % 128 or columns % 64:
                raise ArtifactError(f"format {format.name!r} needs rows in 128s and columns in 64s, not {_text(shape)}")
            codes = _rows("codes", 0, rows, columns // 2)
            tile = columns // format.group * 128
            scales = Plane("scales", align_up(codes.bytes, 256), rows // 128 * tile, 128, tile)
            return [codes, scales, Plane("divisor", scales.offset + scales.bytes, 4, 0, 4)]
        case RowFloat():
            _matrix(format, shape)
            codes = _rows("codes", 0, rows, columns)
            return [codes, _rows("scales", align_up(codes.bytes, 256), rows, 2)]
        case GgmlBlock():
            if not shape or shape[-1] % format.block:
                raise ArtifactError(f"format {format.name!r} needs a last axis in {format.block}s, not {_text(shape)}")
            # A vector is one row of blocks: its elements cannot be sliced one by one.
            units = rows if len(shape) > 1 else 1
            size = prod(shape) // format.block * format.block_bytes
            return [Plane("blocks", 0, size, 0 if units == 1 else 1, size // units)]
        case GgmlRecord():
            return [_records(format, shape)]


def _grouped(format: Grouped, rows: int, columns: int) -> list[Plane]:
    groups = align_up(columns, 128) // format.group
    base = _rows("base", 0, rows, groups * format.base_bytes)
    high = _rows("high", align_up(base.bytes, 256), rows, groups * format.high_bytes)
    scales = _rows("scales", high.offset + align_up(high.bytes, 256), rows, groups * 2)
    return [base, high, scales] if format.high_bytes else [base, scales]


def record_fillers(format: GgmlRecord, shape: Sequence[int]) -> list[tuple[int, int]]:
    """Offsets `[begin, end)`, in each record, of the zero bytes behind its gate, up and down blocks (§3.5)."""
    _, hidden, intermediate = shape
    gate = intermediate * (hidden // format.gate.block) * format.gate.block_bytes
    up = align_up(gate, 256)
    down = align_up(up + gate, 256)
    end = down + hidden * (intermediate // format.down.block) * format.down.block_bytes
    return [(gate, up), (up + gate, down), (end, align_up(end, 256))]


def _records(format: GgmlRecord, shape: Sequence[int]) -> Plane:
    if len(shape) != 3 or shape[1] % format.gate.block or shape[2] % format.down.block:
        raise ArtifactError(
            f"format {format.name!r} needs a shape [experts, hidden in {format.gate.block}s, intermediate in "
            f"{format.down.block}s], not {_text(shape)}"
        )
    return _rows("records", 0, shape[0], record_fillers(format, shape)[-1][1])


def _rows(name: str, offset: int, rows: int, row_bytes: int) -> Plane:
    return Plane(name, offset, rows * row_bytes, 1, row_bytes)


def _matrix(format: Format, shape: Sequence[int]) -> None:
    if len(shape) != 2:
        raise ArtifactError(f"format {format.name!r} holds matrices [rows, columns], not shape {_text(shape)}")


def _text(shape: Sequence[int]) -> str:
    return "[" + ",".join(str(size) for size in shape) + "]"
