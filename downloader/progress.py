"""How far a download is: a bar for a person, lines for a program."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from downloader.chunks import Progress
from downloader.fetch import Report

LINE_SECONDS = 2.0


@contextmanager
def shown(name: str) -> Iterator[Report]:
    """A bar on a terminal; elsewhere a line every few seconds that a program can read."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Report(transfer=_lines("download"), verify=_lines("verify"))
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console) as bars:
        yield Report(transfer=_bar(bars, f"{name}: download"), verify=_bar(bars, f"{name}: verify"))


def _bar(bars: Bars, what: str) -> Progress:
    task = None

    def update(done: int, total: int) -> None:
        nonlocal task
        if task is None:
            task = bars.add_task(what, total=total)
        bars.update(task, completed=done, total=total)

    return update


def _lines(what: str) -> Progress:
    """The controller reads these (`appliance.controller`)."""
    last, said = -LINE_SECONDS, -1

    def update(done: int, total: int) -> None:
        nonlocal last, said
        now = time.monotonic()
        if done != said and (now - last >= LINE_SECONDS or done == total):
            last, said = now, done
            print(f"progress what={what} done={done} total={total}", flush=True)  # noqa: T201

    return update
