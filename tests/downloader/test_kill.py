"""SIGKILL at any point (cases D1, D4): nothing wrong is promoted, and the next run needs no hand work."""

import hashlib
import random
from pathlib import Path

import pytest

from downloader import staging
from downloader.catalog import Pin
from downloader.fetch import fetch
from downloader.journal import Arrival, JournalError
from tests.downloader import victim
from tests.downloader.hub import PIECE, Hub, flipped, serve, write_catalog
from tests.downloader.world import BODY, CHUNK, surroundings, whole

SEGMENTS = 4


def test_killed_ten_times_at_random_points_with_parallel_segments(tmp_path: Path, models: Path) -> None:
    chance = random.Random(11)
    log = tmp_path / "log"
    sent = 0
    with serve(Hub(BODY, drip=lambda _: 0.001)) as hub:
        catalog = write_catalog(tmp_path, BODY, endpoint=hub.url, chunk_bytes=65536)
        command = ["tiny", "--catalog", str(catalog), "--dir", str(models), "--segments", str(SEGMENTS)]
        for _ in range(10):
            # Somewhere in the next half of what is missing: between the first byte and shortly before the last.
            missing = len(BODY) - _staged_bytes(models)
            hub.stalled.clear()
            hub.stall_at = hub.sent + chance.randrange(1, max(missing // 2, 2))
            running = victim.start(command, log)
            assert hub.stalled.wait(30), log.read_text()
            running.kill()
            running.join()
            hub.release.set()
            hub.release.clear()
            assert not (models / "tiny.ninfer").exists()
        hub.stall_at = None
        last = victim.start(command, log)
        last.join(30)
        sent = hub.sent
        assert last.exitcode == 0, log.read_text()
    assert whole(models / "tiny.ninfer")
    assert not list(models.glob("*.part*"))
    # Each kill lost at most what was on its way: a chunk a segment, and what the sockets held.
    assert sent - len(BODY) <= 10 * SEGMENTS * (65536 + PIECE)


def test_killed_between_the_last_byte_and_the_promotion(pin: Pin, models: Path, hub: Hub) -> None:
    _stage(models, pin, BODY)
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert hub.requests == []


@pytest.mark.parametrize("position", [0, CHUNK + 5, len(BODY) - 1])
def test_a_byte_of_the_staged_file_that_flipped_is_named_and_repaired(
    hub: Hub, pin: Pin, models: Path, position: int, capfd: pytest.CaptureFixture[str]
) -> None:
    _stage(models, pin, flipped(BODY, position))
    assert whole(fetch(pin, models, surroundings=surroundings()))
    chunk = position // CHUNK
    begin, end = chunk * CHUNK, min((chunk + 1) * CHUNK, len(BODY)) - 1
    assert f"bytes {begin}-{end}" in capfd.readouterr().out
    assert hub.ranges() == [f"bytes={begin}-{end}"]


def test_a_journal_may_end_anywhere(pin: Pin, models: Path) -> None:
    staged = _stage(models, pin, BODY)
    text = staged.journal.path.read_bytes()
    before = 0
    for end in range(text.index(b"\n") + 1, len(text), 37):
        staged.journal.path.write_bytes(text[:end] + b"\0" * (end % 3))
        staged.journal.append(Arrival(12, pin.layout.size(12), "f" * 64))
        arrivals = staged.journal.read()
        assert arrivals[12].sha256 == "f" * 64, "a line that was cut off swallowed the next"
        assert len(arrivals) >= before
        before = len(arrivals)
    staged.journal.path.write_bytes(text[:20])
    with pytest.raises(JournalError):
        staged.journal.read()


def test_a_power_cut_that_takes_the_end_of_the_file_back(hub: Hub, pin: Pin, models: Path) -> None:
    staged = _stage(models, pin, BODY)
    with staged.path.open("r+b") as file:
        file.truncate(11 * CHUNK + 5)
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert sorted(hub.ranges()) == [f"bytes={11 * CHUNK}-{12 * CHUNK - 1}", f"bytes={12 * CHUNK}-{len(BODY) - 1}"]


def test_a_prefix_that_the_disk_altered_is_not_continued(hub: Hub, pin: Pin, models: Path) -> None:
    staged = _stage(models, pin, flipped(BODY, 3 * CHUNK + 1))
    good = staged.arrivals[3]
    staged.note(Arrival(3, 1000, good.sha256))
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert hub.ranges() == [f"bytes={3 * CHUNK}-{4 * CHUNK - 1}"]


def _stage(models: Path, pin: Pin, body: bytes) -> staging.Staging:
    """A staged file of which everything arrived as BODY, and which holds `body` now."""
    models.mkdir()
    staged = staging.open_staging(models, pin, staging.Disk())
    staged.path.write_bytes(body)
    for chunk in range(pin.layout.count):
        begin, end = pin.layout.range(chunk)
        staged.note(Arrival(chunk, end - begin, hashlib.sha256(BODY[begin:end]).hexdigest()))
    return staged


def _staged_bytes(models: Path) -> int:
    parts = list(models.glob("*.part"))
    return parts[0].stat().st_blocks * 512 if parts else 0
