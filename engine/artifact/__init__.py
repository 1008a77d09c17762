"""Artifacts: the `.ninfer` container, its formats and layouts, reading, writing, verifying, converting (no torch).

The reader needs numpy and is imported when it is first asked for: upgrading an artifact is possible without numpy.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.artifact.reader import Artifact, EncodedPart
    from engine.artifact.tensor import EncodedTensor

__all__ = ["Artifact", "EncodedPart", "EncodedTensor"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from engine.artifact import reader, tensor  # noqa: PLC0415

    return getattr(tensor if name == "EncodedTensor" else reader, name)
