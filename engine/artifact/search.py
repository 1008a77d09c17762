"""The encoder `grouped_search`: the best of 50 scales a group, by weighted error (spec/artifact.md §2.7).

Rows and groups never depend on each other and every sum runs in one fixed order, so that, on one machine, any way of
cutting a matrix into blocks gives the same bytes.
"""

import numpy as np
import numpy.typing as npt

from engine.artifact.formats import Grouped, grouped_format
from engine.artifact.grouped import GroupedPlanes, pack_grouped, quantize_absmax, to_float32
from engine.artifact.layouts import align_up
from engine.exits import ArtifactError

RATIOS = tuple(round(0.70 + 0.02 * step, 2) for step in range(25))
"""What each of the two base scales is multiplied with."""

BLOCK_WEIGHTS = 1 << 17
"""Weights searched at a time: few enough that the candidates' temporaries stay in a processor's cache."""

_SMALLEST = np.float16(2.0**-24)


def encode_search(
    format: str,
    rows: npt.NDArray[np.generic],
    importance: npt.NDArray[np.float32] | None = None,
    *,
    negative_scales: bool = False,
) -> GroupedPlanes:
    """Encode rows of a matrix, ready to be written.

    rows: bfloat16, float16, float32 or float64 [rows, columns], finite. importance: float32 [columns], not negative;
    None weighs all columns alike. `negative_scales` lets a group whose largest weight is positive use the one code
    more that two's complement has below zero.

    Raises:
        ArtifactError: as `encode_grouped`, or the importance does not fit the columns.
    """
    return pack_grouped(format, *quantize_search(format, rows, importance, negative_scales=negative_scales))


def quantize_search(
    format: str,
    rows: npt.NDArray[np.generic],
    importance: npt.NDArray[np.float32] | None = None,
    *,
    negative_scales: bool = False,
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Codes int8 [rows, padded columns] and scales float16 [rows, groups]; arguments and errors as `encode_search`."""
    kind = grouped_format(format)
    codes, scales = quantize_absmax(format, rows)
    count, columns = rows.shape
    groups = align_up(columns, 128) // kind.group
    weights = np.zeros(groups * kind.group, np.float32)
    if importance is None:
        weights[:columns] = 1.0
    else:
        check_importance(importance, columns)
        weights[:columns] = importance
    step = max(1, BLOCK_WEIGHTS // (groups * kind.group))
    for first in range(0, count, step):
        block = slice(first, min(first + step, count))
        x = np.zeros((block.stop - first, groups * kind.group), np.float32)
        x[:, :columns] = to_float32(rows[block])
        _search(kind, x, weights, codes[block], scales[block], negative_scales=negative_scales)
    return codes, scales


def check_importance(importance: npt.NDArray[np.float32], columns: int) -> None:
    """Check a vector of importance for a matrix of `columns` input columns.

    Raises:
        ArtifactError: another length or type, or a value that is negative or not finite.
    """
    if importance.dtype != np.float32 or importance.shape != (columns,):
        raise ArtifactError(
            f"the importance is {importance.dtype} {list(importance.shape)}; the matrix asks for float32 [{columns}]"
        )
    if not (np.isfinite(importance).all() and (importance >= 0).all()):
        raise ArtifactError("an importance is negative or not finite")


def _search(
    kind: Grouped,
    x: npt.NDArray[np.float32],
    weights: npt.NDArray[np.float32],
    codes: npt.NDArray[np.int8],
    scales: npt.NDArray[np.float16],
    *,
    negative_scales: bool,
) -> None:
    """Improve the absmax `codes` and `scales` of some rows in place."""
    count = x.shape[0]
    # Lanes first: every step is one pass over all groups, and an error is summed lane after lane.
    lanes = np.ascontiguousarray(x.reshape(-1, kind.group).T)
    importance = np.ascontiguousarray(np.tile(weights.reshape(-1, kind.group), (count, 1)).T)
    best_codes = np.ascontiguousarray(codes.reshape(-1, kind.group).T)
    best_scales = scales.reshape(-1).copy()
    product, trial = np.empty_like(lanes), np.empty_like(lanes)
    high, low = lanes.max(axis=0), lanes.min(axis=0)
    extreme = np.where(high >= -low, high, low)
    filled = extreme != 0
    bases = np.abs(extreme) / np.float32(kind.maximum), extreme / np.float32(kind.minimum)

    # A weight near the end of float32 has an infinite error with every scale; comparisons with it are false.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        best = _errors(lanes, importance, best_scales, best_codes.astype(np.float32), product)
        for base in bases:
            if not negative_scales and not (base > 0).any():
                continue
            for ratio in RATIOS:
                scale = (base.astype(np.float64) * ratio).astype(np.float32).astype(np.float16)
                scale = np.where(scale == 0, np.copysign(_SMALLEST, base.astype(np.float16)), scale)
                allowed = filled & np.isfinite(scale)
                if not negative_scales:
                    allowed &= scale > 0
                np.multiply(lanes, (1.0 / scale.astype(np.float64)).astype(np.float32), out=trial)
                np.rint(trial, out=trial)
                np.clip(trial, kind.minimum, kind.maximum, out=trial)
                error = _errors(lanes, importance, scale, trial, product)
                better = np.flatnonzero(allowed & (error < best))
                best[better] = error[better]
                best_scales[better] = scale[better]
                best_codes[:, better] = trial[:, better]
    codes[...] = best_codes.T.reshape(codes.shape)
    scales[...] = best_scales.reshape(scales.shape)


def _errors(
    lanes: npt.NDArray[np.float32],
    importance: npt.NDArray[np.float32],
    scale: npt.NDArray[np.float16],
    codes: npt.NDArray[np.float32],
    product: npt.NDArray[np.float32],
) -> npt.NDArray[np.float32]:
    """Weighted squared error float32 [groups] of codes [lanes, groups]; `product` is scratch."""
    np.multiply(codes, scale.astype(np.float32), out=product)
    np.subtract(lanes, product, out=product)
    np.square(product, out=product)
    np.multiply(product, importance, out=product)
    return np.asarray(np.add.reduce(product, axis=0))
