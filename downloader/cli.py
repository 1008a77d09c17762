"""`download-model NAME`: fetch, verify, list and clean pinned artifacts."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from downloader import staging
from downloader.catalog import DEFAULT_CATALOG, Pin, find, read_catalog
from downloader.errors import CatalogError, DownloadError
from downloader.fetch import Report, fetch, locate
from downloader.verify import is_verified

LINE_SECONDS = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 in place, 1 failed, 2 cannot work as asked."""
    parser = argparse.ArgumentParser(prog="download-model", description=__doc__, allow_abbrev=False)
    parser.add_argument("name", nargs="?", help="catalog name, for example qwen38-27b")
    parser.add_argument("--catalog", type=Path, default=DEFAULT_CATALOG, help="pins to use")
    parser.add_argument("--dir", type=Path, help="folder of artifacts [NINFER_MODEL_DIR, else ./models]")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="show the catalog and what is in place")
    action.add_argument("--verify", action="store_true", help="check the file that is in place, fetch nothing")
    action.add_argument("--clean", action="store_true", help="remove staged files of this model")
    options = parser.parse_args(arguments)
    folder = options.dir or Path(os.environ.get("NINFER_MODEL_DIR") or "models")
    try:
        catalog = read_catalog(options.catalog)
        if options.list:
            return _list(catalog, folder)
        if options.name is None:
            raise CatalogError(f"which model? The catalog has {', '.join(sorted(catalog))}")
        pin = find(catalog, options.name)
        if options.verify:
            return _verify(pin, folder)
        if options.clean:
            return _clean(pin, folder)
        with _progress(pin.name) as report:
            path = fetch(pin, folder, report=report, trust_size=os.environ.get("NINFER_SKIP_SHA256") == "1")
        print(f"{pin.name}: in place and verified: {path}")
    except DownloadError as error:
        print(f"download-model: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("download-model: stopped; the next run continues where this one ended", file=sys.stderr)
        return 130
    return 0


def _list(catalog: dict[str, Pin], folder: Path) -> int:
    for pin in catalog.values():
        path = locate(pin, folder)
        part = staging.part_path(folder, pin)
        if path.exists():
            state = f"present: {path}"
        elif part.exists():
            state = f"{part.stat().st_size} bytes staged"
        else:
            state = "absent"
        print(f"{pin.name:<24}{pin.bytes / 2**30:>8.2f} GiB  {state}")
    return 0


def _verify(pin: Pin, folder: Path) -> int:
    path = locate(pin, folder)
    if not path.exists():
        raise DownloadError(f"{path}: not there; download-model {pin.name} fetches it")
    with _progress(pin.name) as report:
        good = is_verified(path, pin, report.verify)
    if not good:
        raise DownloadError(
            f"{path}: not the pinned bytes (SHA-256 {pin.sha256}); download-model {pin.name} replaces it"
        )
    print(f"{pin.name}: verified: {path}")
    return 0


def _clean(pin: Pin, folder: Path) -> int:
    mine = staging.part_path(folder, pin)
    paths = [*staging.other_partials(folder, pin), *([mine] if mine.exists() else [])]
    for path in paths:
        print(f"removing {path} ({path.stat().st_size} bytes)")
        path.unlink()
    staging.discard(folder, pin)
    return 0


@contextmanager
def _progress(name: str) -> Iterator[Report]:
    """A bar on a terminal; elsewhere a line every few seconds that a program can read."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Report(transfer=_lines(f"{name}: download"), verify=_lines(f"{name}: verify"))
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars: dict[str, int] = {}

        def show(what: str) -> Callable[[int, int], None]:
            def update(done: int, total: int) -> None:
                if what not in bars:
                    bars[what] = progress.add_task(what, total=total)
                progress.update(progress.task_ids[bars[what]], completed=done, total=total)

            return update

        yield Report(transfer=show(f"{name}: download"), verify=show(f"{name}: verify"))


def _lines(what: str) -> Callable[[int, int], None]:
    last = -LINE_SECONDS

    def update(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_SECONDS or done == total:
            last = now
            print(f"progress what={what.split(': ')[1]} done={done} total={total}", flush=True)

    return update


if __name__ == "__main__":
    sys.exit(main())
