"""How far a long run is: a bar on a terminal, a line every few seconds anywhere else."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

LINE_SECONDS = 5.0


@contextmanager
def show_progress(
    console: Console, what: str, clock: Callable[[], float] = time.monotonic, *, unit: str = "bytes"
) -> Iterator[Callable[[int, int], None]]:
    """Give a function to call with bytes (or what `unit` says) done and in all; it draws on `console`."""
    if console.is_terminal:
        counts: list[ProgressColumn] = (
            [DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn(), TextColumn(unit)]
        )
        columns = (TextColumn("{task.description}"), BarColumn(), *counts)
        with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task(what)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    begun = clock()
    last = begun

    def line(done: int, total: int) -> None:
        nonlocal last
        now = clock()
        if now - last < LINE_SECONDS and done < total:
            return
        last = now
        rate = done / (now - begun) if now > begun else 0.0
        left = f", {(total - done) / rate:.0f} s left" if rate and done < total else ""
        scale, name = (1e6, "MB") if unit == "bytes" else (1, unit)
        state = f"{done / scale:.0f} of {total / scale:.0f} {name} ({100 * done / total:.0f}%)"
        text = f"{what}: {state}, {rate / scale:.0f} {name}/s{left}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    yield line
