"""One encoded tensor of an artifact: its planes of bytes, and its rows decoded."""

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from engine.artifact.directory import Tensor
from engine.artifact.floats import decode_fp8_rows, decode_nvfp4, unswizzle_scales
from engine.artifact.formats import BlockFloat, Direct, Format, Grouped, RowFloat, find_format
from engine.artifact.grouped import GroupedPlanes, decode_grouped
from engine.artifact.layouts import TENSOR_ALIGNMENT, Geometry, find_layout, geometry
from engine.artifact.payload import Payload
from engine.exits import ArtifactError

BLOCK_ELEMENTS = 1 << 20
"""Elements decoded at a time, which bounds temporary memory to some tens of MB."""


@dataclass(frozen=True)
class EncodedTensor:
    """A tensor whose format and layout are known and whose size and alignment are right."""

    id: str
    shape: tuple[int, ...]
    format: Format
    geometry: Geometry
    offset: int
    payload: Payload

    @property
    def layout(self) -> str:
        """Name of the storage layout."""
        return self.format.layout

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Type of decoded values: that of a direct format, float32 for every other."""
        return self.format.dtype if isinstance(self.format, Direct) else np.dtype(np.float32)

    def plane(self, name: str) -> npt.NDArray[np.uint8]:
        """All bytes of one plane, read-only; a view of the mapped file unless the plane crosses files."""
        return self.plane_rows(name, 0, self.geometry.rows)

    def plane_rows(self, name: str, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """The bytes of one plane that hold rows `[begin, end)`, widened to whole units (128 rows of nvfp4 scales)."""
        first, last = self.geometry.plane(name).span(begin, end)
        return self.payload.read(self.offset + first, self.offset + last)

    def fillers(self) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Offset in the object and bytes of each gap between planes; the layout says they are zero."""
        for begin, end in self.geometry.fillers():
            yield begin, self.payload.read(self.offset + begin, self.offset + end)

    def rows(self, begin: int, end: int) -> npt.NDArray[np.generic]:
        """Rows `[begin, end)` decoded, [end - begin, columns]. A direct format gives a read-only view.

        Raises:
            ArtifactError: this version knows the format only by size.
        """
        columns = self.geometry.columns
        count = end - begin
        match self.format:
            case Direct(dtype=dtype):
                return self.plane_rows("words", begin, end).view(dtype).reshape(count, columns)
            case Grouped():
                return decode_grouped(self.format, self.grouped_rows(begin, end), columns)
            case BlockFloat():
                tile = begin // 128 * 128
                scales = unswizzle_scales(self.plane_rows("scales", begin, end), columns)
                return decode_nvfp4(
                    self.plane_rows("codes", begin, end).reshape(count, columns // 2),
                    scales[begin - tile : end - tile],
                    self.divisor,
                )
            case RowFloat():
                return decode_fp8_rows(
                    self.plane_rows("codes", begin, end).reshape(count, columns),
                    self.plane_rows("scales", begin, end).view(ml_dtypes.bfloat16),
                )
            case _:
                raise ArtifactError(
                    f"{self.payload.path}: object {self.id!r}: values of format {self.format.name!r} cannot be decoded "
                    "by this version"
                )

    def grouped_rows(self, begin: int, end: int) -> GroupedPlanes:
        """The planes of rows `[begin, end)` of a grouped integer format, without decoding them."""
        count = end - begin
        assert isinstance(self.format, Grouped)
        high = (
            self.plane_rows("high", begin, end).reshape(count, -1)
            if self.format.high_bytes
            else np.empty((count, 0), np.uint8)
        )
        return GroupedPlanes(
            self.plane_rows("base", begin, end).reshape(count, -1),
            high,
            self.plane_rows("scales", begin, end).view(np.float16).reshape(count, -1),
        )

    @property
    def divisor(self) -> np.float32:
        """The divisor of an nvfp4 matrix."""
        return np.float32(self.plane("divisor").view(np.float32)[0])

    def row_blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges of rows that cover the tensor, each of about a million elements, cut at multiples of 128."""
        step = max(1, BLOCK_ELEMENTS // self.geometry.columns)
        step = step // 128 * 128 or (128 if isinstance(self.format, BlockFloat) else step)
        for begin in range(0, self.geometry.rows, step):
            yield begin, min(begin + step, self.geometry.rows)

    def decode_into(self, out: npt.NDArray[np.generic], begin: int, end: int) -> None:
        """Decode elements `[begin, end)`, in C order, into the flat array `out` of `end - begin` elements."""
        columns = self.geometry.columns
        step = max(1, BLOCK_ELEMENTS // columns)
        position = begin
        while position < end:
            first = position // columns
            last = min(first + step, -(-end // columns))
            flat = self.rows(first, last).reshape(-1)
            stop = min(end, last * columns)
            out[position - begin : stop - begin] = flat[position - first * columns : stop - first * columns]
            position = stop


def encoded_tensor(record: Tensor, payload: Payload) -> EncodedTensor:
    """Look up format and layout of a tensor and check its size and alignment (spec §1.3, lazy checks).

    Raises:
        ArtifactError: unknown format or layout, a shape the layout cannot hold, or a wrong size or alignment.
    """
    try:
        format = find_format(record.format)
        find_layout(record.layout, format)
        planes = geometry(format, record.shape)
        if planes.bytes != record.bytes:
            raise ArtifactError(
                f"has {record.bytes} bytes; {format.name} {list(record.shape)} takes exactly {planes.bytes}"
            )
        if record.offset % TENSOR_ALIGNMENT:
            raise ArtifactError(f"starts at {record.offset}, which is not a multiple of {TENSOR_ALIGNMENT}")
    except ArtifactError as error:
        raise ArtifactError(f"object {record.id!r}: {error}") from None
    return EncodedTensor(record.id, record.shape, format, planes, record.offset, payload)
