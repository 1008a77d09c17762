"""What is served in the tests, and a world that does not wait."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from downloader.fetch import Surroundings
from downloader.segments import Pace

MIB = 1024 * 1024
CHUNK = 256 * 1024
BODY = random.Random(7).randbytes(3 * MIB + 12345)  # 12 chunks and a short one


def surroundings(
    *, sleep: Callable[[float], None] = lambda _: None, pace: Pace | None = None, **changes: object
) -> Surroundings:
    """The real world, without waiting."""
    pace = replace(pace or Pace(attempts=4, window=5.0), sleep=sleep)
    return replace(Surroundings(pace=pace), **changes)  # type: ignore[arg-type]


def interrupt(_: float) -> None:
    raise KeyboardInterrupt


def whole(path: Path) -> bool:
    return path.read_bytes() == BODY
