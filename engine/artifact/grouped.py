"""Grouped integer weights: the reference encoder, and codes to and from planes (spec/artifact.md §2.2, §2.6, §3.2).

Everything works on a block of whole rows, and rows never depend on each other, so any way of cutting a matrix into
blocks gives the same bytes.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from engine.artifact.formats import Grouped, grouped_format
from engine.artifact.layouts import align_up
from engine.exits import ArtifactError

_SMALLEST_SCALE = np.float16(2.0**-24)


@dataclass(frozen=True)
class GroupedPlanes:
    """The planes of some rows of a `row_split_k128_v1` object.

    base: uint8 [rows, groups * 32]; high: uint8 [rows, groups * high_bytes]; scales: float16 [rows, groups].
    """

    base: npt.NDArray[np.uint8]
    high: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float16]


def encode_grouped(format: str, rows: npt.NDArray[np.generic]) -> GroupedPlanes:
    """Encode rows of a matrix with `grouped_absmax`, ready to be written.

    rows: bfloat16, float16, float32 or float64 [rows, columns], finite. The result is for the row width padded to a
    multiple of 128 columns.

    Raises:
        ArtifactError: a value is not finite, or so large that its group's scale is not.
    """
    codes, scales = quantize_absmax(format, rows)
    return pack_grouped(format, codes, scales)


def quantize_absmax(format: str, rows: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Codes int8 [rows, padded columns] and scales float16 [rows, groups] of the encoder `grouped_absmax`.

    The order of roundings is that of spec/artifact.md §2.6; the scale and its reciprocal are divided in float64.

    Raises:
        ArtifactError: as `encode_grouped`.
    """
    kind = grouped_format(format)
    count, columns = rows.shape
    groups = align_up(columns, 128) // kind.group
    padded = np.zeros((count, groups * kind.group), np.float32)
    padded[:, :columns] = to_float32(rows)
    x = padded.reshape(count, groups, kind.group)
    # abs turns the -0.0 of an all-zero group into the +0 its scale must be.
    largest = np.abs(np.maximum(x.max(axis=2), -x.min(axis=2)))
    if not np.isfinite(largest).all():
        raise ArtifactError("a weight is not finite (or beyond float32); nothing can be encoded from it")
    with np.errstate(over="ignore"):
        scales = (largest.astype(np.float64) / kind.maximum).astype(np.float32).astype(np.float16)
    if not np.isfinite(scales).all():
        raise ArtifactError(
            f"a weight of {largest.max():g} needs a scale beyond float16 in {kind.name!r}; "
            f"the largest weight it can hold is {65504.0 * kind.maximum:g}"
        )
    scales[(scales == 0) & (largest != 0)] = _SMALLEST_SCALE
    with np.errstate(divide="ignore"):
        inverse = (1.0 / scales.astype(np.float64)).astype(np.float32)
    inverse[scales == 0] = 0.0
    x *= inverse[:, :, np.newaxis]
    np.rint(x, out=x)
    np.clip(x, kind.minimum, kind.maximum, out=x)
    return padded.astype(np.int8), scales


def pack_grouped(format: str, codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]) -> GroupedPlanes:
    """Pack codes int8 [rows, padded columns] of any encoder beside their scales float16 [rows, groups].

    Raises:
        ArtifactError: a code is outside the format, or the shapes do not belong together.
    """
    kind = grouped_format(format)
    count, width = codes.shape
    if width % 128 or scales.shape != (count, width // kind.group):
        raise ArtifactError(f"{kind.name!r}: codes {codes.shape} and scales {scales.shape} do not belong together")
    if codes.size and (codes.min() < kind.minimum or codes.max() > kind.maximum):
        raise ArtifactError(f"{kind.name!r} holds codes {kind.minimum} to {kind.maximum}, not all of these")
    words = np.ascontiguousarray(codes).view(np.uint8)
    if kind.code_bits == 8:
        return GroupedPlanes(words, np.empty((count, 0), np.uint8), scales)
    base = words[:, 0::2] & np.uint8(15) | words[:, 1::2] << np.uint8(4)
    if not kind.high_bytes:
        return GroupedPlanes(base, np.empty((count, 0), np.uint8), scales)
    stream = [words >> bit & 1 for bit in range(4, kind.code_bits)]
    high = np.packbits(np.stack(stream, axis=2).reshape(count, -1), axis=1, bitorder="little")
    return GroupedPlanes(base, high, scales)


def unpack_codes(kind: Grouped, base: npt.NDArray[np.uint8], high: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    """Codes int8 [rows, padded columns] from the planes base and high, shaped as in `GroupedPlanes`."""
    if kind.code_bits == 8:
        return base.view(np.int8)
    count = base.shape[0]
    words = np.empty((count, base.shape[1] * 2), np.uint8)
    words[:, 0::2] = base & 15
    words[:, 1::2] = base >> 4
    if kind.high_bytes:
        stream = np.unpackbits(high, axis=1, bitorder="little").reshape(count, -1, kind.code_bits - 4)
        for bit in range(kind.code_bits - 4):
            words |= stream[:, :, bit] << (4 + bit)
    # Two's complement: move the sign bit to bit 7 and shift back arithmetically.
    spare = 8 - kind.code_bits
    return (words << spare).view(np.int8) >> spare


def decode_grouped(kind: Grouped, planes: GroupedPlanes, columns: int) -> npt.NDArray[np.float32]:
    """Weights float32 [rows, columns]: code times scale, rounded once (§2.2). Negative scales are legal."""
    codes = unpack_codes(kind, planes.base, planes.high)
    count = codes.shape[0]
    weights = codes.reshape(count, -1, kind.group).astype(np.float32)
    weights *= planes.scales.astype(np.float32)[:, :, np.newaxis]
    return weights.reshape(count, -1)[:, :columns]


def to_float32(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Weights of any floating type as float32; what float32 cannot hold becomes infinite.

    Raises:
        ArtifactError: the type is not a floating one.
    """
    if rows.dtype == ml_dtypes.bfloat16:
        # A bfloat16 is the top half of a float32; shifting is much quicker than the generic conversion.
        words = np.ascontiguousarray(rows).view(np.uint16).astype(np.uint32) << 16
        return words.view(np.float32)
    if rows.dtype.kind != "f":
        raise ArtifactError(f"weights of type {rows.dtype} cannot be encoded; bfloat16 and IEEE floats can")
    with np.errstate(over="ignore"):
        return rows.astype(np.float32)
