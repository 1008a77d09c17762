"""What a person sees while the box starts: a live display on a terminal, otherwise one line an event."""

import json
import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

from appliance.access import certificate_file, key_needed, shown_fingerprint
from appliance.settings import Settings
from engine.protocol import Phase
from engine.state_file import State

if TYPE_CHECKING:
    from rich.console import Group

BOOT: tuple[Phase, ...] = ("fetch", "probe", "plan", "load", "reserve", "warm-up", "prove", "ready")
LINE_SECONDS = 5.0  # between two lines that differ only in progress


class Display(Protocol):
    """Where `up` shows states and passes on what programs print."""

    def show(self, state: State) -> None: ...
    def output(self, data: bytes) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


class PlainDisplay:
    """For logs: a line when the phase changes, and now and then one with the progress."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = out, clock
        self._last: State | None = None
        self._at = 0.0

    def show(self, state: State) -> None:
        """Print the state unless it is old news."""
        last, self._last = self._last, state
        if last is not None and last.phase == state.phase:
            same_story = last.detail == state.detail or state.total > 0
            if same_story and (last.done == state.done or self._clock() - self._at < LINE_SECONDS):
                return
        self._at = self._clock()
        self.say(describe_state(state))

    def output(self, data: bytes) -> None:
        """Pass on what programs print."""
        self._out.buffer.write(data)
        self._out.flush()

    def say(self, text: str) -> None:
        """One line of our own."""
        print(text, file=self._out, flush=True)

    def close(self) -> None:
        """Nothing to take down."""


class TerminalDisplay:
    """For a terminal: the phases with the current one moving, logs above them. Taken down when ready."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console  # noqa: PLC0415  (an import that only terminals pay for)
        from rich.live import Live  # noqa: PLC0415

        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        self._live_type = Live
        self._last: State | None = None
        self._rest = b""

    def show(self, state: State) -> None:
        """Draw the phases, or take the display down when there is nothing more to wait for."""
        if state == self._last:
            return
        self._last = state
        if state.phase not in BOOT or state.phase == "ready":
            self._take_down()
            self.say(describe_state(state))
        elif self._live is None:
            self._live = self._live_type(
                self._group(state), console=self._console, refresh_per_second=8, transient=True
            )
            self._live.start()
        else:
            self._live.update(self._group(state))

    def output(self, data: bytes) -> None:
        """Print whole lines above the display."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._console.print(line.decode(errors="replace"), soft_wrap=True)

    def say(self, text: str) -> None:
        """One line of our own."""
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._take_down()
        if self._rest:
            self.output(b"\n")

    def _take_down(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _group(self, state: State) -> "Group":
        from rich.console import Group  # noqa: PLC0415
        from rich.progress_bar import ProgressBar  # noqa: PLC0415
        from rich.spinner import Spinner  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        reached = BOOT.index(state.phase)
        grid = Table.grid(padding=(0, 1))
        for place, phase in enumerate(BOOT):
            if place < reached:
                grid.add_row(Text("✓", style="green"), Text(phase), "", "")
            elif place > reached:
                grid.add_row("", Text(phase, style="dim"), "", "")
            else:
                bar = ProgressBar(total=state.total, completed=state.done, width=30) if state.total else ""
                grid.add_row(Spinner("dots"), Text(phase, style="bold"), bar, Text(_progress(state)))
        return Group(grid)


def describe_state(state: State) -> str:
    """One line."""
    progress = _progress(state)
    return f"{state.phase}: {progress}" if progress else state.phase


def invitation(settings: Settings) -> list[str]:
    """What to know once the box is ready: the address, the catalog's note, and one request that streams."""
    body = {
        "model": settings.public_name,
        "stream": True,
        "max_tokens": 200,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    key = " -H 'Authorization: Bearer YOUR_KEY'" if key_needed(settings) else ""
    certificate = certificate_file(settings) if settings.options.tls == "self-signed" else None
    trust = "" if certificate is None else f" --cacert {shlex.quote(str(certificate))}"
    fingerprint = shown_fingerprint(certificate_file(settings))
    tls = [] if fingerprint is None else [f"certificate SHA-256 {fingerprint}"]
    request = f"-H 'Content-Type: application/json'{key} -d {shlex.quote(json.dumps(body))}"
    note = [f"note: {settings.note}"] if settings.note else []
    return [
        f"ready at {settings.url}",
        *tls,
        *note,
        f"try: curl -N{trust} {settings.url}/v1/chat/completions {request}",
    ]


def _progress(state: State) -> str:
    if not state.total:
        return state.detail
    if state.unit == "bytes":
        counts = f"{state.done / 2**30:.2f} of {state.total / 2**30:.2f} GiB"
    else:
        counts = f"{state.done} of {state.total} {state.unit}".rstrip()
    return f"{state.detail} {counts}".strip()
