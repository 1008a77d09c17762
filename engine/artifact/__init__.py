"""Artifacts: the `.ninfer` container, its formats and layouts, reading, writing, verifying, converting (numpy only)."""

from engine.artifact.reader import Artifact, EncodedPart
from engine.artifact.tensor import EncodedTensor

__all__ = ["Artifact", "EncodedPart", "EncodedTensor"]
