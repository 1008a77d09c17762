"""Faults of servers and disks while an artifact is fetched (cases D3-D8, X9)."""

import errno
import hashlib
import json
import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from downloader import staging
from downloader.catalog import Pin, find, read_catalog
from downloader.errors import CatalogError, DownloadError, TransferError
from downloader.fetch import Report, fetch
from downloader.partials import superseded
from downloader.segments import Pace
from downloader.staging import Disk
from downloader.transfer import public
from downloader.verify import record_path
from tests.downloader.hub import Hub, flipped, serve, write_catalog
from tests.downloader.world import BODY, CHUNK, MIB, interrupt, surroundings, whole


def test_downloads_in_parallel_verifies_and_then_asks_nothing(hub: Hub, pin: Pin, models: Path) -> None:
    hub.drip = lambda _: 0.005
    seen: list[int] = []
    path = fetch(pin, models, surroundings=surroundings(), report=_report(seen))
    assert whole(path)
    assert path == models / "tiny.ninfer"
    assert sorted(p.name for p in models.iterdir()) == ["tiny.ninfer", "tiny.ninfer.lock", "tiny.ninfer.verified"]
    assert len(hub.requests) == 13
    assert 2 < hub.most_at_once <= 8
    assert seen == sorted(seen)
    assert seen[-1] == len(BODY)
    fetch(pin, models, surroundings=surroundings())
    assert len(hub.requests) == 13


def test_the_number_of_segments_is_bounded(hub: Hub, pin: Pin, models: Path) -> None:
    hub.drip = lambda _: 0.002
    assert whole(fetch(pin, models, surroundings=surroundings(pace=Pace(segments=2))))
    assert hub.most_at_once == 2


def test_what_was_learned_at_the_first_success_is_in_the_record(pin: Pin, models: Path) -> None:
    record = json.loads(record_path(fetch(pin, models, surroundings=surroundings())).read_text())
    assert record["chunk_bytes"] == CHUNK
    assert record["chunks"] == [
        hashlib.sha256(BODY[begin : begin + CHUNK]).hexdigest() for begin in range(0, len(BODY), CHUNK)
    ]


def test_a_server_without_ranges_is_read_from_the_start_and_what_is_there_stays(
    hub: Hub, pin: Pin, models: Path
) -> None:
    hub.ignore_range = True
    hub.break_after = [0, MIB + 5, 2 * MIB]
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert hub.ranges() == [f"bytes=0-{CHUNK - 1}", "", "", ""]


def test_a_server_that_ignores_a_range_half_way_cannot_spoil_what_came(hub: Hub, pin: Pin, models: Path) -> None:
    hub.break_after = [CHUNK] * 5 + [1000]
    with pytest.raises(KeyboardInterrupt):
        fetch(pin, models, surroundings=surroundings(sleep=interrupt, pace=Pace(segments=1)))
    hub.ignore_range = True
    with capture_logs() as lines:
        assert whole(fetch(pin, models, surroundings=surroundings()))
    assert "server_sends_no_ranges" in [line["event"] for line in lines]
    assert "content_differs" not in [line["event"] for line in lines]


def test_a_range_that_starts_elsewhere_is_refused(hub: Hub, pin: Pin, models: Path) -> None:
    hub.wrong_range = True
    with pytest.raises(TransferError, match=r"asked for bytes \d+-\d+ of \d+, the server answered 'bytes"):
        fetch(pin, models, surroundings=surroundings())
    assert not (models / "tiny.ninfer").exists()
    assert len(hub.requests) == 4


def test_surplus_bytes_stop_the_transfer_and_are_not_kept(hub: Hub, pin: Pin, models: Path) -> None:
    hub.surplus = b"x" * 10
    pace = Pace(segments=1, attempts=2)
    with pytest.raises(TransferError, match=r"more than the \d+ bytes it was asked for.*; 0 of"):
        fetch(pin, models, surroundings=surroundings(pace=pace))
    hub.surplus = b""
    assert whole(fetch(pin, models, surroundings=surroundings()))


def test_a_redirect_to_a_host_without_validators_resumes(hub: Hub, pin: Pin, models: Path) -> None:
    with serve(Hub(b"", redirect_to=hub.url)) as front:
        redirected = replace(pin, url=(pin.url or "").replace(hub.url, front.url))
        hub.break_after = [CHUNK] * 11 + [100_000]
        with pytest.raises(KeyboardInterrupt):
            fetch(redirected, models, surroundings=surroundings(sleep=interrupt, pace=Pace(segments=1)))
        before = len(hub.requests)
        assert whole(fetch(redirected, models, surroundings=surroundings(pace=Pace(segments=1))))
        assert hub.ranges()[before:] == [
            f"bytes={11 * CHUNK + 100_000}-{12 * CHUNK - 1}",
            f"bytes={12 * CHUNK}-{len(BODY) - 1}",
        ]


@pytest.mark.parametrize("header", ["X-Linked-Etag", "X-Linked-Size"])
def test_a_hub_that_says_it_holds_another_object_is_not_read(hub: Hub, pin: Pin, models: Path, header: str) -> None:
    stated = {"X-Linked-Etag": f'"{"0" * 64}"', "X-Linked-Size": "7"}[header]
    with serve(Hub(b"", redirect_to=hub.url, headers={header: stated})) as front:
        redirected = replace(pin, url=(pin.url or "").replace(hub.url, front.url))
        with pytest.raises(CatalogError, match="holds another object"):
            fetch(redirected, models, surroundings=surroundings())


def test_the_token_goes_to_the_hub_alone(
    hub: Hub, pin: Pin, models: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serve(Hub(BODY)) as mirror, serve(Hub(b"", redirect_to=hub.url.replace("127.0.0.1", "localhost"))) as front:
        url = (pin.url or "").replace(hub.url, front.url)
        hub.break_after = [100]
        hub.drip = mirror.drip = lambda _: 0.005
        fetch(replace(pin, url=url, mirrors=(f"{mirror.url}/tiny.ninfer",)), models, surroundings=surroundings())
        assert front.requests[0]["Authorization"] == "Bearer hf_secret"
        assert mirror.requests
        assert all("Authorization" not in request for request in [*hub.requests, *mirror.requests])
    assert "hf_secret" not in "".join(capfd.readouterr())


def test_secrets_of_addresses_are_not_shown() -> None:
    assert public("https://me:secret@host/a?Signature=abc") == "https://host/a?…"
    assert (
        public("Max retries with url: /a?X-Amz-Signature=abc (Caused by x)")
        == "Max retries with url: /a?… (Caused by x)"
    )


def test_empty_bodies_are_retried_with_growing_pauses_and_a_single_segment(hub: Hub, pin: Pin, models: Path) -> None:
    hub.empty_bodies = 3
    pauses: list[float] = []
    assert whole(fetch(pin, models, surroundings=surroundings(sleep=pauses.append)))
    assert [round(pause) for pause in pauses] == [2, 4, 8]
    assert len(hub.requests) == 3 + 13


def test_an_error_status_gives_up_after_bounded_attempts(hub: Hub, pin: Pin, models: Path) -> None:
    hub.status = 503
    hub.headers = {"Retry-After": "30"}
    pauses: list[float] = []
    with pytest.raises(TransferError, match=r"503.*gave up after 4 attempts.*next run continues"):
        fetch(pin, models, surroundings=surroundings(sleep=pauses.append))
    assert len(hub.requests) == 4
    assert [round(pause) for pause in pauses] == [30, 30, 30]


@pytest.mark.parametrize(
    ("status", "words"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "no such object"), (416, "shorter")]
)
def test_refusals_are_not_retried(hub: Hub, pin: Pin, models: Path, status: int, words: str) -> None:
    hub.status = status
    with pytest.raises(CatalogError, match=words):
        fetch(pin, models, surroundings=surroundings())
    assert len(hub.requests) == 1


def test_a_seam_is_the_first_suspect(hub: Hub, pin: Pin, models: Path) -> None:
    # The connection breaks inside a chunk and the second answer begins with other bytes.
    hub.break_after = [CHUNK, CHUNK, 100_000]
    begin = 2 * CHUNK + 100_000
    hub.alter = lambda number, body: flipped(body, begin + 9) if number == 3 else body
    assert whole(fetch(pin, models, surroundings=surroundings(pace=Pace(segments=1))))
    assert hub.ranges()[-1] == f"bytes={2 * CHUNK}-{3 * CHUNK - 1}"
    assert len(hub.requests) == 13 + 1 + 1


def test_one_corrupted_block_without_any_digest_is_found_by_a_second_reading(hub: Hub, pin: Pin, models: Path) -> None:
    hub.alter = lambda number, body: flipped(body, *range(5 * CHUNK, 5 * CHUNK + 65536)) if number < 13 else body
    with capture_logs() as lines:
        assert whole(fetch(pin, models, surroundings=surroundings()))
    found = next(line for line in lines if line["event"] == "ranges_fetched_again")
    assert found["where"] == f"bytes {5 * CHUNK}-{6 * CHUNK - 1}"


def test_one_corrupted_block_with_listed_digests_is_fetched_again_by_itself(
    hub: Hub, listed: Pin, models: Path
) -> None:
    hub.alter = lambda number, body: flipped(body, 5 * CHUNK + 77) if number == 5 else body
    assert whole(fetch(listed, models, surroundings=surroundings(pace=Pace(segments=1))))
    assert len(hub.requests) == 14
    assert hub.ranges().count(f"bytes={5 * CHUNK}-{6 * CHUNK - 1}") == 2


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (lambda _, body: flipped(body, 9), "always the same other bytes"),
        (lambda number, body: flipped(body, number), "other bytes each time"),
    ],
)
def test_a_chunk_that_stays_wrong_ends_with_a_diagnosis(
    hub: Hub, listed: Pin, models: Path, alter: Callable[[int, bytes], bytes], words: str
) -> None:
    hub.alter = alter
    with pytest.raises(DownloadError, match=rf"bytes 0-{CHUNK - 1} came wrong 3 times.*{words}"):
        fetch(listed, models, surroundings=surroundings(pace=Pace(segments=1)))
    assert len(hub.requests) == 3


def test_a_swapped_object_is_put_aside_and_not_resumed(hub: Hub, pin: Pin, models: Path) -> None:
    other = random.Random(8).randbytes(len(BODY))
    hub.alter = lambda number, body: body if number < 6 else other
    with pytest.raises(DownloadError, match="content differs from the pin"):
        fetch(pin, models, surroundings=surroundings())
    assert not (models / "tiny.ninfer").exists()
    assert not staging.part_path(models, pin).exists()
    assert superseded(models, [pin]) == list(models.glob("*.part.rejected"))
    hub.alter = lambda _, body: body
    before = len(hub.requests)
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert len(hub.requests) - before == 13


def test_too_little_space_is_refused_before_the_first_byte(hub: Hub, pin: Pin, models: Path) -> None:
    with pytest.raises(DownloadError, match=f"free {len(BODY) - 1000} bytes"):
        fetch(pin, models, surroundings=surroundings(disk=Disk(free_bytes=lambda _: 1000)))
    assert hub.requests == []


@pytest.mark.parametrize("fails", ["write", "sync"])
def test_a_disk_that_fills_up_names_the_shortfall_and_keeps_what_came(
    hub: Hub, pin: Pin, models: Path, fails: str
) -> None:
    calls = iter(range(1000))
    free = iter([10 * MIB, 0])
    full = OSError(errno.ENOSPC, "No space left on device")

    def write(file: int, data: memoryview, position: int) -> int:
        if fails == "write" and position >= MIB:
            raise full
        return os.pwrite(file, data, position)

    def sync(file: int) -> None:
        if fails == "sync" and next(calls) >= 4:
            raise full
        os.fdatasync(file)

    disk = Disk(write=write, sync=sync, free_bytes=lambda _: next(free))
    with pytest.raises(DownloadError, match=r"disk is full, \d+ bytes short.*next run continues"):
        fetch(pin, models, surroundings=surroundings(disk=disk, pace=Pace(segments=1)))
    before = len(hub.requests)
    assert whole(fetch(pin, models, surroundings=surroundings()))
    assert len(hub.requests) - before == 9  # four chunks were there


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_really_full_file_system(hub: Hub, pin: Pin, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        roomy = surroundings(disk=Disk(free_bytes=lambda _: 10 * MIB))
        with pytest.raises(DownloadError, match="disk is full"):
            fetch(pin, small, surroundings=roomy)
        subprocess.run(["mount", "-o", "remount,size=16m", str(small)], check=True)
        assert whole(fetch(pin, small, surroundings=surroundings()))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_disk_that_gives_back_other_bytes_is_named(pin: Pin, models: Path) -> None:
    def write(file: int, data: memoryview, position: int) -> int:
        return os.pwrite(file, flipped(bytes(data), 0) if position == 3 * CHUNK else data, position)

    with pytest.raises(DownloadError, match=rf"bytes {3 * CHUNK}-{4 * CHUNK - 1} are read back other .*disk or"):
        fetch(pin, models, surroundings=surroundings(disk=Disk(write=write)))


def test_one_writer_per_file(hub: Hub, pin: Pin, models: Path) -> None:
    refused: list[str] = []

    def second(_: float) -> None:
        with pytest.raises(DownloadError, match="another download of tiny is running") as caught:
            fetch(pin, models, surroundings=surroundings())
        refused.append(str(caught.value))

    hub.break_after = [CHUNK - 1]
    assert whole(fetch(pin, models, surroundings=surroundings(sleep=second, pace=Pace(segments=1))))
    assert len(refused) == 1


def test_partials_of_other_revisions_are_left_alone_and_listed(pin: Pin, models: Path) -> None:
    models.mkdir()
    old = models / f"tiny.ninfer.{'f' * 40}.part"
    old.write_bytes(b"old")
    fetch(pin, models, surroundings=surroundings())
    assert old.exists()
    assert superseded(models, [pin]) == [old]


def test_a_partial_that_cannot_be_continued_is_dropped_with_a_reason(pin: Pin, models: Path) -> None:
    models.mkdir()
    staging.part_path(models, pin).write_bytes(b"x" * 1000)
    with capture_logs() as lines:
        assert whole(fetch(pin, models, surroundings=surroundings()))
    dropped = next(line for line in lines if line["event"] == "partial_dropped")
    assert dropped["dropped_bytes"] == 1000
    assert "journal" in dropped["reason"]


def test_an_unsupported_container_version_is_refused_before_downloading(hub: Hub, tmp_path: Path) -> None:
    catalog = read_catalog(write_catalog(tmp_path, BODY, format_version=4, endpoint=hub.url), {})
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


def test_trusting_the_size_skips_the_hash_and_leaves_no_verification_record(pin: Pin, models: Path) -> None:
    wrong = replace(pin, sha256=hashlib.sha256(b"other").hexdigest())
    path = fetch(wrong, models, surroundings=surroundings(), trust_size=True)
    assert whole(path)
    assert not record_path(path).exists()


def _report(seen: list[int]) -> Report:
    return Report(transfer=lambda done, _: seen.append(done))
