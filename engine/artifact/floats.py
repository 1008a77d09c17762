"""Weights of four- and eight-bit floats with a scale: `nvfp4` and row FP8 (spec/artifact.md §2.3, §2.4, §3.3, §3.4)."""

import ml_dtypes
import numpy as np
import numpy.typing as npt

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
