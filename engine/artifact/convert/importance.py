"""The importance matrix: how much each input channel of a projection matters (spec/artifact.md §2.8).

A safetensors file with one float32 vector a parameter, named as the parameter: the mean square of what enters each
column. Searching encoders weigh their errors with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from engine.artifact.convert.sources import CheckpointError
from engine.artifact.parameters import Parameter
from engine.artifact.search import check_importance
from engine.artifact.unfinished import write_new
from engine.exits import ArtifactError

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ImportanceMatrix:
    """Vectors float32 [columns] by parameter name, and what the file says they come from."""

    vectors: Mapping[str, Vector]
    source: str

    @classmethod
    def read(cls, path: Path) -> "ImportanceMatrix":
        """Read the file at `path`.

        Raises:
            CheckpointError: it is no safetensors file, or holds something other than vectors of float32.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                metadata: Mapping[str, str] = file.metadata() or {}
                vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        except (SafetensorError, FileNotFoundError, IsADirectoryError, TypeError) as error:
            raise CheckpointError(f"{path} is not an importance matrix: {error}") from None
        for name, vector in vectors.items():
            if vector.dtype != np.float32 or vector.ndim != 1:
                raise CheckpointError(f"{path}: {name!r} is {vector.dtype} {list(vector.shape)}, not a float32 vector")
        return cls(vectors, metadata.get("source", path.name))

    def write(self, path: Path) -> None:
        """Write a new file at `path`.

        Raises:
            ArtifactError: there is one already.
            OSError: the disk does not take it.
        """
        write_new(path, save(dict(self.vectors), {"source": self.source}))

    def check(self, parameters: Sequence[Parameter]) -> None:
        """Check that every vector belongs to one of `parameters` and fits it.

        Raises:
            CheckpointError: it does not; the message names the first.
        """
        known = {parameter.name: parameter for parameter in parameters}
        for name, vector in self.vectors.items():
            if name not in known:
                raise CheckpointError(f"the importance matrix covers {name!r}, which this model does not have")
            try:
                check_importance(vector, known[name].shape[-1])
            except ArtifactError as error:
                raise CheckpointError(f"importance matrix, {name}: {error}") from None

    def of(self, members: Sequence[Parameter]) -> Vector | None:
        """The vector for parameters stored as one object: the mean of those covered, None when none is."""
        covered = [self.vectors[member.name] for member in members if member.name in self.vectors]
        if not covered:
            return None
        return np.asarray(np.mean(np.stack(covered), axis=0, dtype=np.float32))


NO_IMPORTANCE = ImportanceMatrix({}, "")
"""Covers nothing: every column counts alike."""
