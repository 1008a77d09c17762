"""Which stored words a format allows (spec/artifact.md §2): the checks behind `ninfer-artifact verify`."""

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import numpy.typing as npt

from engine.artifact.formats import BlockFloat, GgmlRecord, Grouped, RowFloat
from engine.artifact.grouped import unpack_codes
from engine.artifact.layouts import align_up, record_fillers
from engine.artifact.tensor import EncodedTensor


def check_words(tensor: EncodedTensor, progress: Callable[[int], None] = lambda _: None) -> Iterator[str]:
    """Read a tensor block by block and describe what its format or layout does not allow.

    Each kind of fault is described once, with the first row where it is found. `progress` is called with the bytes
    of each block, which add up to the size of the object.
    """
    reported: set[str] = set()
    left = tensor.geometry.bytes
    for begin, bytes in tensor.fillers():
        if bytes.any():
            yield f"padding between planes is not zero at byte {begin + int(np.flatnonzero(bytes)[0])}"
    blocks = list(tensor.row_blocks())
    for begin, end in blocks:
        for fault, rows in _faults(tensor, begin, end):
            if rows.any() and fault not in reported:
                reported.add(fault)
                yield f"{fault} (first in row {begin + int(np.flatnonzero(rows)[0])})"
        share = left if end == tensor.geometry.rows else tensor.geometry.bytes * (end - begin) // tensor.geometry.rows
        left -= share
        progress(share)


_Rows = npt.NDArray[np.bool_]


def _faults(tensor: EncodedTensor, begin: int, end: int) -> Iterator[tuple[str, _Rows]]:
    match tensor.format:
        case Grouped():
            yield from _grouped(tensor, tensor.format, begin, end)
        case BlockFloat():
            scales = tensor.plane_rows("scales", begin, end).reshape(-1, tensor.geometry.columns * 8)
            yield "a block scale is negative or NaN", np.repeat(_in_row(scales > 0x7E), 128)
            if begin == 0:
                divisor = tensor.divisor
                yield f"the divisor {divisor!s} is not finite and positive", np.array([not 0 < divisor < np.inf])
        case RowFloat():
            codes = tensor.plane_rows("codes", begin, end).reshape(end - begin, -1) & 0x7F
            scales = tensor.plane_rows("scales", begin, end)
            values = scales.view(ml_dtypes.bfloat16).astype(np.float32)
            yield "a code is NaN", _in_row(codes == 0x7F)
            yield "a row scale is negative or not finite", np.signbit(values) | ~np.isfinite(values)
            yield "a row has scale 0 and codes that are not", (values == 0) & _in_row(codes != 0)
        case GgmlRecord():
            records = tensor.plane_rows("records", begin, end).reshape(end - begin, -1)
            for first, last in record_fillers(tensor.format, tensor.shape):
                yield "padding inside a record is not zero", _in_row(records[:, first:last] != 0)
        case _:
            # Every word of the other formats is legal.
            return


def _in_row(mask: _Rows) -> _Rows:
    return np.asarray(mask.any(axis=1))


def _grouped(tensor: EncodedTensor, format: Grouped, begin: int, end: int) -> Iterator[tuple[str, _Rows]]:
    planes = tensor.grouped_rows(begin, end)
    rows, columns = end - begin, tensor.geometry.columns
    groups = align_up(columns, 128) // format.group
    scales, words = planes.scales, planes.scales.view(np.uint16)
    yield "a scale is not finite", _in_row(~np.isfinite(scales))
    yield "a scale is -0", _in_row(words == 0x8000)
    zero = words == 0
    codes = planes.base.reshape(rows, groups, -1).any(axis=2)
    if format.high_bytes:
        codes |= planes.high.reshape(rows, groups, -1).any(axis=2)
    yield "a group has scale 0 and codes that are not", _in_row(zero & codes)
    if format.code_bits == 8:
        yield "a code is -128", _in_row(planes.base == 0x80)
    if columns % 128:
        yield "a group of padding has a scale", _in_row(words[:, -(-columns // format.group) :] != 0)
        tail = unpack_codes(format, planes.base, planes.high)[:, columns:]
        yield "a column of padding has a code", _in_row(tail != 0)
