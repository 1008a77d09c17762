"""From an artifact to a model on a device."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.artifact import Artifact
from engine.artifact.config import TextConfig
from engine.artifact.vocabulary import TOKENIZER, TOKENIZER_CONFIG, parse_vocabulary
from engine.exits import ArtifactError
from engine.model import TextModel
from engine.rounds import Model

Progress = Callable[[int], None]  # parameters read so far


@dataclass(frozen=True)
class ModelSource:
    """What the boot needs to know of an open artifact. `parameters` counts the numbers of the text stack."""

    name: str
    fingerprint: str
    payload_bytes: int
    parameters: int
    config: TextConfig
    vocabulary: list[bytes]
    load: Callable[[torch.device, torch.dtype, Progress], Model]
    special: tuple[int, ...] = ()  # ids that are never text; without one, answers cannot be constrained


OpenSource = Callable[[Path], AbstractContextManager[ModelSource]]


@contextmanager
def open_artifact(path: Path) -> Iterator[ModelSource]:
    """The artifact at `path`, open while the context lasts.

    Raises:
        ArtifactError: it is missing, damaged, or lacks what the engine needs.
    """
    with Artifact.open(path) as artifact:
        config = artifact.text_config
        parsed = parse_vocabulary(artifact.resource("text", TOKENIZER), artifact.resource("text", TOKENIZER_CONFIG))
        vocabulary = parsed.tokens
        if len(vocabulary) > config.vocab_size:
            raise ArtifactError(f"{path}: {len(vocabulary)} tokens, but the text stack has {config.vocab_size} rows")

        def load(device: torch.device, dtype: torch.dtype, progress: Progress) -> Model:
            counted = _Counted(artifact, progress)
            return TextModel.load(counted, config, device=device, dtype=dtype, token_count=len(vocabulary))

        yield ModelSource(
            name=artifact.name,
            fingerprint=artifact.fingerprint,
            payload_bytes=artifact.directory.payload_bytes,
            parameters=sum(
                artifact.binding(name).elements for name in artifact.parameters() if name.startswith("text/")
            ),
            config=config,
            vocabulary=vocabulary,
            load=load,
            special=tuple(token.id for token in parsed.added if token.special),
        )


class _Counted:
    """A parameter source that reports how many numbers it has given out."""

    def __init__(self, artifact: Artifact, progress: Progress) -> None:
        self._artifact, self._progress = artifact, progress
        self._done = 0

    def values(self, name: str) -> "np.ndarray[Any, np.dtype[Any]]":
        values = self._artifact.values(name)
        self._done += values.size
        self._progress(self._done)
        return values
