"""The model as `api` sees it: its text front end, its name, and which artifact they came from.

The artifact may not be there yet while `fetch` runs, so it is looked for until it is; it is read again when the
engine says that it serves another one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from engine.artifact import Artifact
from engine.exits import NInferError
from engine.log import get_logger
from engine.text import Frontend

log = get_logger(__name__)

POLL = 0.2
RETRY = 2.0


@dataclass(frozen=True)
class ServedModel:
    """One opened artifact. `created` is in Unix seconds, `size` in bytes over all files."""

    frontend: Frontend
    name: str
    fingerprint: str
    created: int
    size: int = 0
    architecture: str = ""
    formats: tuple[str, ...] = ()


Load = Callable[[Path, Path | None], ServedModel]


def load_model(artifact: Path, template: Path | None) -> ServedModel:
    """Open the artifact's text resources; no weights are read.

    Raises:
        NInferError: the artifact or the template cannot be used.
        OSError: a file is not there or cannot be read.
    """
    text = None if template is None else template.read_text(encoding="utf-8")
    created = int(artifact.stat().st_mtime)
    with Artifact.open(artifact) as opened:
        frontend = Frontend.load(opened, text)
        directory = opened.directory
        architectures = directory.components["text"].config.get("architectures") or [""]
        return ServedModel(
            frontend,
            opened.name,
            opened.fingerprint,
            created,
            size=directory.payload_bytes,
            architecture=str(architectures[0]),
            formats=tuple(sorted({tensor.format for tensor in directory.tensors})),
        )


class ModelLoader:
    """Keeps `model` equal to what the engine serves; `detail` says what is missing while it is not."""

    def __init__(
        self, artifact: Path, template: Path | None, load: Load, pool: Executor, served: Callable[[], str]
    ) -> None:
        """`served()` is the fingerprint that the engine announced, or "" while it is unknown."""
        self._artifact, self._template, self._load, self._pool, self._served = artifact, template, load, pool, served
        self.model: ServedModel | None = None
        self.detail = f"waiting for {artifact.name}"

    @property
    def current(self) -> ServedModel | None:
        """The model, unless the engine serves another artifact."""
        if self.model is not None and self._served() in ("", self.model.fingerprint):
            return self.model
        return None

    async def run(self) -> None:
        """Load, and load again when the engine serves another artifact, until cancelled."""
        said = ""
        while True:
            if self.current is not None:
                await asyncio.sleep(POLL)
                continue
            try:
                self.model = await asyncio.get_running_loop().run_in_executor(
                    self._pool, self._load, self._artifact, self._template
                )
            except FileNotFoundError as error:
                self.detail, pause = f"waiting for {Path(error.filename or self._artifact).name}", POLL
            except (NInferError, OSError, UnicodeDecodeError) as error:
                self.detail, pause = str(error), RETRY
            else:
                self.detail, pause = "", POLL
                if self.current is None:
                    self.detail, pause = f"the engine serves another artifact than {self._artifact}", RETRY
            if self.detail != said:
                said = self.detail
                log.info("model_loaded" if not said else "model_not_loaded", artifact=str(self._artifact), detail=said)
            await asyncio.sleep(pause)
