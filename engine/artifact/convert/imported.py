"""Words that another tool has encoded: checkpoints in the convention of compressed-tensors (spec/artifact.md §2.11)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np
import numpy.typing as npt

from engine.artifact.config import TextConfig
from engine.artifact.convert.recipes import IMPORT, NVFP4, Recipe
from engine.artifact.convert.sources import Array, Checkpoint, CheckpointError
from engine.artifact.convert.tensors import Source, read_runs, text_sources
from engine.artifact.floats import check_fp8_rows, swizzle_scales
from engine.artifact.parameters import Parameter
from engine.exits import ArtifactError

ORIGIN = "quantized"
_TILE = 128


def quantized_sources(
    checkpoint: Checkpoint, config: TextConfig, registry: Iterable[Parameter], recipe: Recipe
) -> dict[str, Source]:
    """Sources of the text parameters that `recipe` takes from the quantised checkpoint, all checked.

    Raises:
        CheckpointError: a tensor is missing, misshapen or of another type.
    """
    wrapped = any(name.startswith("model.language_model.") for name in checkpoint)
    prefix = "model.language_model." if wrapped else "model."
    sources = text_sources(config, prefix, checkpoint.__contains__)
    chosen: dict[str, Source] = {}
    for parameter in registry:
        if not parameter.name.startswith("text/"):
            continue
        selection = recipe.select(parameter)
        source = replace(sources[parameter.name], origin=ORIGIN)
        if selection.method == IMPORT:
            _check(checkpoint, source, selection.format)
            chosen[parameter.name] = source
        elif recipe.quantized_vectors and not parameter.inputs:
            _expect(checkpoint, source.tensor, source.shape, ("BF16", "F16", "F32"))
            chosen[parameter.name] = source
    return chosen


def weight_divisors(checkpoint: Checkpoint, sources: Mapping[str, Source]) -> dict[str, float]:
    """The divisor of each parameter of `sources` that is stored as NVFP4.

    Raises:
        CheckpointError: a divisor is not finite and positive.
    """
    return {
        name: _scalar(checkpoint, _part(source, "weight_global_scale"))
        for name, source in sources.items()
        if _part(source, "weight_global_scale") in checkpoint
    }


def activation_divisor(checkpoint: Checkpoint, source: Source) -> float:
    """The divisor of a parameter's input. CheckpointError when it is missing, or not finite and positive."""
    return _scalar(checkpoint, _part(source, "input_global_scale"))


def imported_planes(
    checkpoint: Checkpoint, source: Source, format: str, columns: int, rows: tuple[int, int]
) -> dict[str, Array]:
    """The planes of rows `[rows[0], rows[1])`, ready to be written. NVFP4 rows come in whole tiles of 128.

    Raises:
        ArtifactError: a word is not one that the format allows, or rows are not whole tiles.
        CheckpointError: the file ends early.
    """

    def read(part: str, width: int) -> npt.NDArray[np.uint8]:
        return read_runs(checkpoint, source, _part(source, part), width, rows).view(np.uint8)

    if format == NVFP4:
        if rows[0] % _TILE or rows[1] % _TILE:
            raise ArtifactError(f"nvfp4 is stored in tiles of {_TILE} rows; these are not whole tiles")
        scales = read("weight_scale", columns // 16)
        if (scales > 0x7E).any():
            raise ArtifactError("a block scale is negative or NaN")
        return {"codes": read("weight_packed", columns // 2), "scales": swizzle_scales(scales)}
    codes = read("weight", columns)
    words = read("weight_scale", 1).reshape(-1).view(ml_dtypes.bfloat16)
    check_fp8_rows(codes, words)
    return {"codes": codes, "scales": words}


def _check(checkpoint: Checkpoint, source: Source, format: str) -> None:
    rows, columns = source.shape
    if format == NVFP4:
        _expect(checkpoint, _part(source, "weight_packed"), (rows, columns // 2), ("U8",))
        _expect(checkpoint, _part(source, "weight_scale"), (rows, columns // 16), ("F8_E4M3",))
        for part in ("weight_global_scale", "input_global_scale"):
            _scalar(checkpoint, _part(source, part))
        return
    _expect(checkpoint, _part(source, "weight"), (rows, columns), ("F8_E4M3",))
    _expect(checkpoint, _part(source, "weight_scale"), (rows, 1), ("BF16",))


def _expect(checkpoint: Checkpoint, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    if name not in checkpoint:
        raise CheckpointError(f"the quantised checkpoint lacks tensor {name!r}")
    stored = checkpoint.tensors[name]
    flat = shape[:-1] if shape[-1] == 1 else shape
    if stored.shape not in (shape, flat) or stored.dtype not in dtypes:
        raise CheckpointError(
            f"quantised tensor {name!r} is {stored.dtype} {list(stored.shape)}; "
            f"expected {' or '.join(dtypes)} {list(shape)}"
        )


def _scalar(checkpoint: Checkpoint, name: str) -> float:
    _expect(checkpoint, name, (1,), ("F32",))
    value = float(checkpoint.read(name, 0, 1)[0])
    if not 0 < value < np.inf:
        raise CheckpointError(f"quantised tensor {name!r} is {value!r}, not finite and positive")
    return value


def _part(source: Source, part: str) -> str:
    return source.tensor.removesuffix("weight") + part
