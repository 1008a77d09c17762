"""Whether requests are served, and what to say while they are not (spec/serving.md §1, §4.3)."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from engine.api.engine_link import EngineLink
from engine.api.model import ModelLoader, ServedModel
from engine.log import get_logger
from engine.protocol import Boot, Limits
from engine.state_file import State, read_state

log = get_logger(__name__)

POLL = 0.2


class Readiness:
    """Ready means: the engine is ready, the controller (if there is one) says so too, and the text front end is loaded.

    A dead engine makes us not ready at once, whatever the state file still says.
    """

    def __init__(self, link: EngineLink, loader: ModelLoader, state_file: Path | None) -> None:
        self._link, self._loader, self._state_file = link, loader, state_file
        self._state: State | None = None
        self.draining = False
        self.open = False  # set once the start is on record; until then nobody is told that we are ready

    @property
    def state(self) -> State | None:
        """What the controller wrote last; None without a controller."""
        return self._state

    @property
    def model(self) -> ServedModel | None:
        """The model to serve, when ready."""
        return self._loader.current if self._found().phase == "ready" else None

    @property
    def limits(self) -> Limits | None:
        """What the engine reserved, when ready."""
        return self._link.limits

    def status(self) -> Boot:
        """The phase with its progress, as clients are told."""
        if self.draining:
            return Boot(phase="draining", detail="the server is shutting down")
        found = self._found()
        return Boot(phase="prove", detail="opening the door") if found.phase == "ready" and not self.open else found

    def _found(self) -> Boot:
        """What engine, controller and tokenizer say."""
        state, boot = self._state, self._link.boot
        if self._state_file is not None:
            if state is None:
                return Boot(phase="fetch", detail="waiting for the controller")
            if state.phase != "ready":
                if boot is not None and boot.phase == state.phase:
                    return boot  # closer to the work, so its progress is fresher
                return Boot(
                    phase=state.phase, detail=state.detail, done=state.done, total=state.total, unit=state.unit
                )  # fmt: skip
        if boot is None:
            detail = "waiting for the engine" if self._link.losses == 0 else "the engine is gone; waiting for it"
            return Boot(phase="load", detail=detail)
        if boot.phase != "ready":
            return boot
        if self._link.limits is None or self._loader.current is None:
            return Boot(phase="load", detail=self._loader.detail or "loading the tokenizer")
        return boot

    async def run(self) -> None:
        """Follow the state file, until cancelled."""
        if self._state_file is None:
            return
        seen: tuple[int, int] | None = None
        while True:
            try:
                stat = self._state_file.stat()
                if (stat.st_mtime_ns, stat.st_ino) != seen:
                    seen = (stat.st_mtime_ns, stat.st_ino)
                    self._state = read_state(self._state_file)
            except FileNotFoundError:
                seen = self._state = None
            except (OSError, msgspec.MsgspecError) as error:
                self._state = State(phase="failed", detail=f"{self._state_file}: {error}")
            await asyncio.sleep(POLL)


def progress_of(status: Boot) -> dict[str, Any] | None:
    """Progress as clients see it; null when the phase counts nothing."""
    return {"done": status.done, "total": status.total, "unit": status.unit} if status.total else None
