"""Damage of a file that is in place already: located, and only that fetched again."""

import json
from pathlib import Path

import pytest

from downloader.catalog import Pin
from downloader.cli import main
from downloader.errors import CatalogError, DownloadError, TransferError
from downloader.fetch import fetch, repair
from downloader.staging import part_path
from downloader.verify import is_verified, record_path
from tests.downloader.hub import Hub, flipped, write_catalog
from tests.downloader.world import BODY, CHUNK, surroundings, whole

DAMAGE = (2 * CHUNK + 9, 3 * CHUNK, 9 * CHUNK + 100)
WANTED = [f"bytes={chunk * CHUNK}-{(chunk + 1) * CHUNK - 1}" for chunk in (2, 3, 9)]


@pytest.fixture
def target(hub: Hub, pin: Pin, models: Path) -> Path:
    """A file that was in place and verified, and was damaged then."""
    path = fetch(pin, models, surroundings=surroundings())
    path.write_bytes(flipped(BODY, *DAMAGE))
    hub.requests.clear()
    return path


def test_only_the_damaged_ranges_are_fetched(hub: Hub, pin: Pin, models: Path, target: Path) -> None:
    assert repair(pin, models, surroundings=surroundings()) == [2, 3, 9]
    assert whole(target)
    assert sorted(hub.ranges()) == sorted(WANTED)
    assert is_verified(target, pin)
    assert repair(pin, models, surroundings=surroundings()) == []


def test_a_plain_fetch_mends_as_well(hub: Hub, pin: Pin, models: Path, target: Path) -> None:
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert sorted(hub.ranges()) == sorted(WANTED)


@pytest.mark.parametrize("size", [len(BODY) + 5, 11 * CHUNK + 1])
def test_a_file_of_another_length(hub: Hub, pin: Pin, models: Path, target: Path, size: int) -> None:
    target.write_bytes((BODY + bytes(5))[:size])
    repair(pin, models, surroundings=surroundings())
    assert whole(target)
    assert len(hub.requests) <= 2


def test_a_repair_that_ends_half_way_leaves_nothing_doubtful_under_the_final_name(
    hub: Hub, pin: Pin, models: Path, target: Path
) -> None:
    hub.status = 503
    with pytest.raises(TransferError):
        repair(pin, models, surroundings=surroundings())
    assert not target.exists()
    assert part_path(models, pin).stat().st_size == len(BODY)
    hub.status = None
    hub.requests.clear()
    assert repair(pin, models, surroundings=surroundings()) == [2, 3, 9]
    assert whole(target)
    assert sorted(hub.ranges()) == sorted(WANTED)


def test_without_a_source_the_damaged_file_stays_where_it_is(pin: Pin, models: Path, target: Path) -> None:
    with pytest.raises(CatalogError, match="offline"):
        repair(pin, models, surroundings=surroundings(offline=True))
    assert target.exists()


def test_another_name_of_the_same_file_is_not_changed(pin: Pin, models: Path, target: Path, tmp_path: Path) -> None:
    other = tmp_path / "linked"
    other.hardlink_to(target)
    repair(pin, models, surroundings=surroundings())
    assert whole(target)
    assert other.read_bytes() == flipped(BODY, *DAMAGE)
    assert not list(models.glob("*.part*"))


def test_without_digests_of_chunks_a_repair_says_so(hub: Hub, pin: Pin, models: Path, target: Path) -> None:
    record_path(target).unlink()
    with pytest.raises(
        DownloadError, match="digests of its chunks are not known; `download-model tiny` fetches it whole"
    ):
        repair(pin, models, surroundings=surroundings())
    assert target.exists()
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert len(hub.requests) == 13


def test_listed_digests_do_without_a_record(hub: Hub, listed: Pin, models: Path, target: Path) -> None:
    record_path(target).unlink()
    assert repair(listed, models, surroundings=surroundings()) == [2, 3, 9]


def test_a_record_that_lies_cannot_make_wrong_bytes_right(hub: Hub, pin: Pin, models: Path, target: Path) -> None:
    record = json.loads(record_path(target).read_text())
    record["chunks"][5] = "0" * 64
    record_path(target).write_text(json.dumps(record))
    assert not is_verified(target, pin)
    repair(pin, models, surroundings=surroundings())
    assert whole(target)


def test_the_commands(hub: Hub, models: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    catalog = ["--catalog", str(write_catalog(tmp_path, BODY, endpoint=hub.url)), "--dir", str(models)]
    assert main(["verify", "tiny", *catalog]) == 1
    said = capsys.readouterr().err
    assert f"bytes {2 * CHUNK}-{4 * CHUNK - 1}, {9 * CHUNK}-{10 * CHUNK - 1} are damaged; --repair" in said
    assert hub.requests == []
    assert main(["verify", "--repair", "tiny", *catalog]) == 0
    assert "repaired" in capsys.readouterr().out
    assert main(["tiny", "--verify", *catalog]) == 0
    assert main(["tiny", "--repair", *catalog]) == 0
    assert "nothing to repair" in capsys.readouterr().out
