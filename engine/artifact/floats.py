"""Weights of four- and eight-bit floats with a scale: `nvfp4` and row FP8 (spec/artifact.md §2.3, §2.4, §3.3, §3.4)."""

import ml_dtypes
import numpy as np
import numpy.typing as npt

from engine.artifact.grouped import to_float32
from engine.exits import ArtifactError

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""Value of each four-bit word."""

E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
"""Value of each eight-bit word; 0x7f and 0xff are NaN."""


def unswizzle_scales(scales: npt.NDArray[np.uint8], columns: int) -> npt.NDArray[np.uint8]:
    """Scale words in row order, uint8 [rows, columns / 16], from whole 128-row tiles of the stored plane.

    Within the plane, rows n = 128 t + 32 q + r and groups g = 4 c + i lie in the order t, c, r, q, i (§3.3).
    """
    tiles = scales.reshape(-1, columns // 64, 32, 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-1, columns // 16)


def swizzle_scales(scales: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The stored order of scale words uint8 [rows, columns / 16]; the inverse of `unswizzle_scales`. Flat."""
    rows, groups = scales.shape
    return scales.reshape(rows // 128, 4, 32, groups // 4, 4).transpose(0, 3, 2, 1, 4).reshape(-1)


def decode_nvfp4(
    codes: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8], divisor: np.float32
) -> npt.NDArray[np.float32]:
    """Weights float32 [rows, columns] from codes uint8 [rows, columns / 2] and scales uint8 [rows, columns / 16].

    The product of code and scale is exact in float32; the division by the matrix divisor rounds once.
    """
    rows, half = codes.shape
    weights = np.empty((rows, half * 2), np.float32)
    weights[:, 0::2] = E2M1[codes & 15]
    weights[:, 1::2] = E2M1[codes >> 4]
    grouped = weights.reshape(rows, -1, 16)
    grouped *= E4M3[scales][:, :, np.newaxis]
    grouped /= divisor
    return weights


def decode_fp8_rows(codes: npt.NDArray[np.uint8], scales: npt.NDArray[ml_dtypes.bfloat16]) -> npt.NDArray[np.float32]:
    """Weights float32 [rows, columns] from codes uint8 [rows, columns] and scales bfloat16 [rows]."""
    weights: npt.NDArray[np.float32] = E4M3[codes]
    weights *= scales.astype(np.float32)[:, np.newaxis]
    return weights


def encode_fp8_rows(rows: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[ml_dtypes.bfloat16]]:
    """The encoder `fp8_row_maxabs` (§2.9): codes uint8 [rows, columns] and scales bfloat16 [rows].

    Raises:
        ArtifactError: a weight is not finite, or a row so small that the reciprocal of its scale is not.
    """
    with np.errstate(over="ignore"):
        x = to_float32(to_float32(rows).astype(ml_dtypes.bfloat16))
    largest = np.abs(x).max(axis=1)
    if not np.isfinite(largest).all():
        raise ArtifactError("a weight is not finite (or beyond bfloat16); nothing can be encoded from it")
    scales = (largest.astype(np.float64) / 448).astype(np.float32).astype(ml_dtypes.bfloat16)
    words = scales.view(np.uint16)
    words[(words == 0) & (largest != 0)] = 1
    with np.errstate(divide="ignore", over="ignore"):
        inverse = (1.0 / scales.astype(np.float64)).astype(np.float32)
    inverse[largest == 0] = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        t = (x.astype(np.float64) * inverse.astype(np.float64)[:, np.newaxis]).astype(np.float32)
    if not np.isfinite(t).all():
        raise ArtifactError("a row is too small for its scale to have a finite reciprocal")
    codes = np.clip(t, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    codes[largest == 0] = 0
    return codes, scales


def nvfp4_divisor(largest: float) -> np.float32:
    """The divisor of a matrix whose largest magnitude is `largest`, float32 (§2.10)."""
    with np.errstate(over="ignore"):
        divisor = np.float32(1.0) if largest == 0 else np.float32(2688.0) / np.float32(largest)
    if not np.isfinite(divisor):
        raise ArtifactError(f"a matrix whose largest weight is {largest:g} has no finite nvfp4 divisor")
    return divisor


_E2M1_STEPS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
"""Where the magnitude goes up by one, and whether the step itself already does: ties go to the even word."""


def encode_nvfp4(
    rows: npt.NDArray[np.generic], divisor: np.float32
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The encoder `nvfp4_absmax` (§2.10): codes uint8 [rows, columns / 2], scales uint8 [rows, columns / 16].

    Raises:
        ArtifactError: a weight is not finite.
    """
    x = to_float32(rows).reshape(rows.shape[0], -1, 16)
    if not np.isfinite(x).all():
        raise ArtifactError("a weight is not finite (or beyond float32); nothing can be encoded from it")
    largest = np.abs(x).max(axis=2)
    raw = np.minimum(largest * divisor / np.float32(6), np.float32(448))
    scales = raw.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    scales[(scales == 0) & (largest > 0)] = 1
    values = E4M3[scales]
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (x * divisor) / values[:, :, np.newaxis]
    t[values == 0] = 0.0
    magnitude = np.abs(t)
    words = np.zeros(t.shape, np.uint8)
    for step, inclusive in _E2M1_STEPS:
        words += magnitude >= step if inclusive else magnitude > step
    words |= np.signbit(t).astype(np.uint8) << 3
    words[values == 0] = 0
    words = words.reshape(rows.shape)
    return words[:, 0::2] | words[:, 1::2] << np.uint8(4), scales


def check_fp8_rows(codes: npt.NDArray[np.uint8], scales: npt.NDArray[ml_dtypes.bfloat16]) -> None:
    """Check words that were encoded elsewhere. ArtifactError when the format does not allow one (§2.4)."""
    values = scales.astype(np.float32)
    if ((codes & 0x7F) == 0x7F).any():
        raise ArtifactError("a code is NaN")
    if (np.signbit(values) | ~np.isfinite(values)).any():
        raise ArtifactError("a row scale is negative or not finite")
    if ((codes & 0x7F).any(axis=1) & (values == 0)).any():
        raise ArtifactError("a row has scale 0 and codes that are not")
