"""How far a long conversion is: a bar on a terminal, a line every few seconds anywhere else."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

LINE_SECONDS = 5.0


@contextmanager
def show_progress(
    console: Console, what: str, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, int], None]]:
    """Give a function to call with bytes done and bytes in all; it draws on `console`."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
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
        state = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB ({100 * done / total:.0f}%)"
        console.print(f"{what}: {state}, {rate / 1e6:.0f} MB/s{left}", highlight=False, markup=False, soft_wrap=True)

    yield line
