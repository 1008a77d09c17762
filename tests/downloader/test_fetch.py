"""Faults of servers, disks and processes while an artifact is fetched (cases D1, D3-D8)."""

import errno
import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from downloader import staging
from downloader.catalog import Pin, find, read_catalog
from downloader.errors import CatalogError, DownloadError, TransferError
from downloader.fetch import Surroundings, fetch
from downloader.transfer import BLOCK_BYTES
from downloader.verify import record_path
from tests.downloader.hub import REVISION, Hub, serve, write_catalog

MIB = 1024 * 1024
CHUNK = 256 * 1024
BODY = random.Random(7).randbytes(3 * MIB + 12345)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve(Hub(BODY)) as running:
        yield running


@pytest.fixture
def pin(hub: Hub, tmp_path: Path) -> Pin:
    catalog = read_catalog(write_catalog(tmp_path, BODY), {"NINFER_HUB_ENDPOINT": hub.url})
    return find(catalog, "tiny")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def surroundings(pauses: list[float] | None = None, **changes: object) -> Surroundings:
    pauses = [] if pauses is None else pauses
    return replace(Surroundings(sleep=pauses.append, chunk_bytes=CHUNK, attempts=4), **changes)  # type: ignore[arg-type]


def whole(path: Path) -> bool:
    return path.read_bytes() == BODY


def test_downloads_verifies_and_then_asks_nothing(hub: Hub, pin: Pin, models: Path) -> None:
    path = fetch(pin, models, surroundings=surroundings())
    assert whole(path)
    assert path == models / "tiny.ninfer"
    assert sorted(p.name for p in models.iterdir()) == ["tiny.ninfer", "tiny.ninfer.lock", "tiny.ninfer.verified"]
    fetch(pin, models, surroundings=surroundings())
    assert len(hub.requests) == 1


def test_a_changed_file_is_noticed_although_it_was_verified_once(pin: Pin, models: Path, hub: Hub) -> None:
    path = fetch(pin, models, surroundings=surroundings())
    damaged = bytearray(BODY)
    damaged[100] ^= 1
    path.write_bytes(damaged)
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert len(hub.requests) == 2


@pytest.mark.parametrize("killed_at", [MIB, 3 * MIB - 100_000, len(BODY)])
def test_sigkill_at_three_points_then_a_second_run_finishes(
    hub: Hub, tmp_path: Path, models: Path, killed_at: int
) -> None:
    hub.stall_after = killed_at
    catalog = write_catalog(tmp_path, BODY)
    environment = os.environ | {"NINFER_HUB_ENDPOINT": hub.url}
    command = [sys.executable, "-m", "downloader", "tiny", "--catalog", str(catalog), "--dir", str(models)]
    first = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    part = models / f"tiny.ninfer.{REVISION}.part"
    if killed_at < len(BODY):
        assert hub.stalled.wait(20)
        deadline = time.monotonic() + 20
        # `iter_content` hands over whole blocks, so up to one block may still be in memory.
        while not part.exists() or part.stat().st_size < killed_at - BLOCK_BYTES:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        first.kill()
    else:
        deadline = time.monotonic() + 20
        while not part.exists() or part.stat().st_size < len(BODY):
            assert first.poll() is None or (models / "tiny.ninfer").exists()
            if (models / "tiny.ninfer").exists():
                break
            assert time.monotonic() < deadline
        first.kill()
    first.communicate()
    hub.release.set()
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 0, second.stderr
    assert whole(models / "tiny.ninfer")
    assert not part.exists()


@pytest.mark.parametrize("position", [0, CHUNK + 5, 2 * MIB + 3])
def test_a_flipped_byte_in_the_staged_file_is_named_and_repaired(
    hub: Hub, pin: Pin, models: Path, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    hub.break_after = [2 * MIB + 200_000]
    with pytest.raises(KeyboardInterrupt):
        fetch(pin, models, surroundings=surroundings(sleep=_interrupt))
    part = staging.part_path(models, pin)
    data = bytearray(part.read_bytes())
    data[position] ^= 0x10
    part.write_bytes(data)
    assert whole(fetch(pin, models, surroundings=surroundings()))
    chunk = position // CHUNK
    expected = f"bytes={chunk * CHUNK}-{(chunk + 1) * CHUNK - 1}"
    assert expected in hub.ranges()
    # Everything else was kept: no request started over.
    assert hub.ranges().count("") == 1


def test_a_flipped_byte_after_the_last_byte_came_is_repaired(hub: Hub, pin: Pin, models: Path) -> None:
    models.mkdir()
    staged = staging.open_staging(models, pin, CHUNK)
    staged.write(BODY)
    staged.close()
    part = staging.part_path(models, pin)
    data = bytearray(BODY)
    data[-1] ^= 1
    part.write_bytes(data)
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert hub.ranges() == [f"bytes={len(BODY) // CHUNK * CHUNK}-{len(BODY) - 1}"]


def test_a_range_answered_with_the_whole_object_starts_over(hub: Hub, pin: Pin, models: Path) -> None:
    hub.break_after = [MIB + 5]
    hub.ignore_range = True
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert len(hub.requests) == 2


def test_a_range_that_starts_elsewhere_is_refused(hub: Hub, pin: Pin, models: Path) -> None:
    hub.break_after = [MIB]
    hub.wrong_range = True
    with pytest.raises(TransferError, match=r"asked for bytes \d+-\d+ of \d+, the server answered 'bytes"):
        fetch(pin, models, surroundings=surroundings())
    assert not (models / "tiny.ninfer").exists()


def test_surplus_bytes_stop_the_transfer(hub: Hub, pin: Pin, models: Path) -> None:
    hub.surplus = b"x" * 10
    with pytest.raises(TransferError, match="more than the pinned"):
        fetch(pin, models, surroundings=surroundings())
    hub.surplus = b""
    assert whole(fetch(pin, models, surroundings=surroundings()))


def test_a_redirect_to_a_host_without_validators_resumes(hub: Hub, pin: Pin, models: Path) -> None:
    with serve(Hub(b"", redirect_to=hub.url)) as front:
        redirected = replace(pin, url=(pin.url or "").replace(hub.url, front.url))
        hub.break_after = [int(len(BODY) * 0.96)]
        with pytest.raises(KeyboardInterrupt):
            fetch(redirected, models, surroundings=surroundings(sleep=_interrupt))
        staged = staging.part_path(models, pin).stat().st_size
        assert staged > len(BODY) * 0.6
        assert whole(fetch(redirected, models, surroundings=surroundings()))
        assert hub.ranges() == ["", f"bytes={staged}-"]


def test_the_token_goes_to_the_hub_and_not_to_the_redirect_target(
    hub: Hub, pin: Pin, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serve(Hub(b"", redirect_to=hub.url.replace("127.0.0.1", "localhost"))) as front:
        fetch(replace(pin, url=(pin.url or "").replace(hub.url, front.url)), models, surroundings=surroundings())
        assert front.requests[0]["Authorization"] == "Bearer hf_secret"
    assert all("Authorization" not in request for request in hub.requests)


def test_empty_bodies_and_broken_connections_are_retried_with_growing_pauses(hub: Hub, pin: Pin, models: Path) -> None:
    hub.empty_bodies = 3
    pauses: list[float] = []
    assert whole(fetch(pin, models, surroundings=surroundings(pauses)))
    assert pauses == [2.0, 4.0, 8.0]


def test_an_error_status_gives_up_after_bounded_attempts(hub: Hub, pin: Pin, models: Path) -> None:
    hub.status = 503
    with pytest.raises(TransferError, match=r"503.*gave up after 4 attempts.*next run continues"):
        fetch(pin, models, surroundings=surroundings())
    assert len(hub.requests) == 4


@pytest.mark.parametrize(("status", "words"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "no such object")])
def test_refusals_are_not_retried(hub: Hub, pin: Pin, models: Path, status: int, words: str) -> None:
    hub.status = status
    with pytest.raises(CatalogError, match=words):
        fetch(pin, models, surroundings=surroundings())
    assert len(hub.requests) == 1


def test_one_corrupted_block_from_the_network_is_fetched_again_by_itself(hub: Hub, pin: Pin, models: Path) -> None:
    # The connection breaks inside a chunk and the second answer begins with other bytes: only the seam is suspect.
    broken_at = MIB + 100_000
    hub.break_after = [broken_at]

    def alter(number: int, body: bytes) -> bytes:
        return body[:broken_at] + bytes(1000) + body[broken_at + 1000 :] if number == 1 else body

    hub.alter = alter
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert len(hub.requests) == 3


def test_a_swapped_object_is_put_aside_and_not_resumed(hub: Hub, pin: Pin, models: Path) -> None:
    other = random.Random(8).randbytes(len(BODY))
    hub.break_after = [len(BODY) // 2]
    hub.alter = lambda number, body: body if number == 0 else other
    with pytest.raises(DownloadError, match="content differs from the pin"):
        fetch(pin, models, surroundings=surroundings())
    assert not (models / "tiny.ninfer").exists()
    assert not staging.part_path(models, pin).exists()
    assert list(models.glob("*.part.rejected"))
    hub.alter = lambda _, body: body
    before = len(hub.requests)
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert hub.ranges()[before:] == [""]


def test_too_little_space_is_refused_before_the_first_byte(hub: Hub, pin: Pin, models: Path) -> None:
    with pytest.raises(DownloadError, match=f"free {len(BODY) - 1000} bytes"):
        fetch(pin, models, surroundings=surroundings(free_bytes=lambda _: 1000))
    assert hub.requests == []


def test_a_disk_that_fills_up_names_the_shortfall_and_keeps_what_came(
    hub: Hub, pin: Pin, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = staging.Staging.write

    def full(self: staging.Staging, block: bytes) -> None:
        if self.length >= MIB:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, block)

    monkeypatch.setattr(staging.Staging, "write", full)
    free = iter([10 * MIB, 0])
    with pytest.raises(DownloadError, match=rf"disk is full, {len(BODY) - MIB} bytes short"):
        fetch(pin, models, surroundings=surroundings(free_bytes=lambda _: next(free)))
    monkeypatch.undo()
    assert staging.part_path(models, pin).stat().st_size == MIB
    assert whole(fetch(pin, models, surroundings=surroundings()))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_really_full_file_system(hub: Hub, pin: Pin, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        with pytest.raises(DownloadError, match="disk is full"):
            fetch(pin, small, surroundings=surroundings(free_bytes=lambda _: 10 * MIB))
        subprocess.run(["mount", "-o", "remount,size=16m", str(small)], check=True)
        assert whole(fetch(pin, small, surroundings=surroundings()))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_one_writer_per_file(hub: Hub, pin: Pin, models: Path) -> None:
    def second() -> None:
        with pytest.raises(DownloadError, match="another download of tiny is running"):
            fetch(pin, models, surroundings=surroundings())

    hub.break_after = [MIB]
    assert whole(fetch(pin, models, surroundings=surroundings(sleep=lambda _: second())))


def test_partials_of_other_revisions_are_left_alone_and_removable(hub: Hub, pin: Pin, models: Path) -> None:
    models.mkdir()
    old = models / f"tiny.ninfer.{'f' * 40}.part"
    old.write_bytes(b"old")
    fetch(pin, models, surroundings=surroundings())
    assert old.exists()
    assert staging.other_partials(models, pin) == [old]


def test_an_unsupported_container_version_is_refused_before_downloading(hub: Hub, tmp_path: Path) -> None:
    catalog = read_catalog(write_catalog(tmp_path, BODY, format_version=4), {"NINFER_HUB_ENDPOINT": hub.url})
    with pytest.raises(CatalogError, match="container version 4, this program reads 3"):
        find(catalog, "tiny")
    assert hub.requests == []


def test_a_local_file_of_another_version_is_replaced_only_by_the_complete_new_one(
    hub: Hub, pin: Pin, models: Path
) -> None:
    models.mkdir()
    target = models / "tiny.ninfer"
    target.write_bytes(b"NINFER\0\2" + bytes(100))
    hub.status = 503
    with pytest.raises(TransferError):
        fetch(pin, models, surroundings=surroundings())
    assert target.read_bytes()[:8] == b"NINFER\0\2"
    hub.status = None
    assert whole(fetch(pin, models, surroundings=surroundings()))


def test_trusting_the_size_skips_the_hash_and_leaves_no_verification_record(hub: Hub, pin: Pin, models: Path) -> None:
    wrong = replace(pin, sha256=hashlib.sha256(b"other").hexdigest())
    path = fetch(wrong, models, surroundings=surroundings(), trust_size=True)
    assert whole(path)
    assert not record_path(path).exists()


def _interrupt(_: float) -> None:
    raise KeyboardInterrupt
