"""Several sources for one digest: order, mixing, liars, slow and stuck peers, other boxes, no network."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from structlog.testing import capture_logs

from downloader.catalog import Pin
from downloader.cli import main
from downloader.errors import CatalogError, DownloadError, TransferError
from downloader.fetch import fetch
from downloader.segments import Pace
from downloader.serve import FolderServer
from downloader.sources import given_sources, is_local
from tests.downloader.hub import Hub, flipped, serve, write_catalog
from tests.downloader.world import BODY, CHUNK, surroundings, whole


@pytest.fixture
def stick(tmp_path: Path) -> Path:
    """A folder that holds the artifact, like a USB stick."""
    folder = tmp_path / "stick"
    folder.mkdir()
    (folder / "tiny.ninfer").write_bytes(BODY)
    return folder


@contextmanager
def box(folder: Path) -> Iterator[str]:
    """Another box that serves its folder."""
    with FolderServer(folder, ("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_several_sources_share_the_segments(hub: Hub, pin: Pin, models: Path) -> None:
    with serve(Hub(BODY)) as mirror:
        hub.drip = mirror.drip = lambda _: 0.003
        assert whole(fetch(replace(pin, mirrors=(mirror.url,)), models, surroundings=surroundings()))
        assert len(hub.requests) + len(mirror.requests) == 13
        assert min(len(hub.requests), len(mirror.requests)) >= 3


def test_a_source_that_breaks_is_replaced_by_the_next(hub: Hub, pin: Pin, models: Path) -> None:
    hub.status = 404
    with serve(Hub(BODY)) as mirror, capture_logs() as lines:
        assert whole(fetch(replace(pin, mirrors=(mirror.url,)), models, surroundings=surroundings()))
    assert [line["source"] for line in lines if line["event"] == "source_lost"] == [pin.url]


def test_a_liar_is_demoted_by_name_when_a_listed_digest_fails(hub: Hub, listed: Pin, models: Path) -> None:
    # Every chunk of the mirror is wrong.
    wrong = flipped(BODY, *range(0, len(BODY), CHUNK))
    with serve(Hub(wrong)) as mirror, capture_logs() as lines:
        hub.drip = mirror.drip = lambda _: 0.003
        assert whole(fetch(replace(listed, mirrors=(mirror.url,)), models, surroundings=surroundings()))
        assert len(mirror.requests) <= 4, "no segment was given to it after the first answers"
    demoted = [line for line in lines if line["event"] == "source_demoted"]
    assert [line["source"] for line in demoted] == [mirror.url]
    assert "differ from the catalog's digest" in demoted[0]["reason"]


def test_a_liar_is_found_without_listed_digests(hub: Hub, pin: Pin, models: Path) -> None:
    with serve(Hub(flipped(BODY, *range(0, len(BODY), CHUNK)))) as mirror, capture_logs() as lines:
        hub.drip = mirror.drip = lambda _: 0.003
        assert whole(fetch(replace(pin, mirrors=(mirror.url,)), models, surroundings=surroundings()))
        assert mirror.requests
    assert [line["source"] for line in lines if line["event"] == "source_demoted"] == [mirror.url]


def test_a_folder_is_enough_and_the_network_is_not_asked(hub: Hub, pin: Pin, models: Path, stick: Path) -> None:
    assert whole(fetch(pin, models, surroundings=surroundings(sources=[str(stick)], offline=True)))
    assert hub.requests == []


def test_a_damaged_stick_and_the_hub_make_one_whole_file(hub: Hub, listed: Pin, models: Path, stick: Path) -> None:
    (stick / "tiny.ninfer").write_bytes(flipped(BODY, *range(4 * CHUNK, len(BODY), CHUNK)))
    with capture_logs() as lines:
        assert whole(fetch(listed, models, surroundings=surroundings(sources=[str(stick)])))
    demoted = [line["source"] for line in lines if line["event"] == "source_demoted"]
    assert demoted == [str(stick / "tiny.ninfer")]
    assert 0 < len(hub.requests) < 13, "what was right on the stick was used"


def test_a_damaged_stick_alone_is_told_apart_from_a_bad_link(listed: Pin, models: Path, stick: Path) -> None:
    (stick / "tiny.ninfer").write_bytes(flipped(BODY, 4 * CHUNK))
    with pytest.raises(DownloadError, match=r"came wrong 3 times.*always the same other bytes"):
        fetch(listed, models, surroundings=surroundings(sources=[str(stick)], offline=True))


@pytest.mark.parametrize("fault", ["absent", "short", "itself"])
def test_what_is_no_source_is_named_and_left_out(
    hub: Hub, pin: Pin, models: Path, tmp_path: Path, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    models.mkdir()
    (models / "tiny.ninfer").write_bytes(flipped(BODY, 1))
    (tmp_path / "tiny.ninfer").write_bytes(b"short")
    given = {"absent": tmp_path / "nowhere", "short": tmp_path, "itself": models}[fault]
    assert whole(fetch(pin, models, surroundings=surroundings(sources=[str(given)])))
    said = capfd.readouterr().out
    assert "source_not_used" in said
    assert {"absent": "No such file", "short": "5 bytes", "itself": "to be replaced"}[fault] in said


def test_another_box_serves_its_folder(hub: Hub, pin: Pin, models: Path, stick: Path) -> None:
    with box(stick) as address:
        assert whole(fetch(pin, models, surroundings=surroundings(sources=[address], offline=True)))
    assert hub.requests == []


def test_what_another_box_gives_out(stick: Path) -> None:
    (stick / "tiny.ninfer.part").write_bytes(b"unfinished")
    (stick / "secret").write_bytes(b"secret")
    with box(stick) as address, requests.Session() as session:
        answer = session.get(f"{address}/tiny.ninfer", headers={"Range": "bytes=10-19"}, timeout=5)
        assert (answer.status_code, answer.content) == (206, BODY[10:20])
        assert answer.headers["Content-Range"] == f"bytes 10-19/{len(BODY)}"
        answer = session.head(f"{address}/tiny.ninfer", timeout=5)
        assert answer.headers["Content-Length"] == str(len(BODY))
        assert session.get(f"{address}/tiny.ninfer", timeout=5).content == BODY
        for span in (f"bytes={len(BODY)}-", "bytes=5-4", "bytes=-5", "lines=1-2"):
            answer = session.get(f"{address}/tiny.ninfer", headers={"Range": span}, timeout=5)
            assert answer.status_code == 416
        for path in ("", "secret", "tiny.ninfer.part", "../models.toml", "%2e%2e/models.toml", "//etc/passwd"):
            assert session.get(f"{address}/{path}", timeout=5).status_code == 404, path
        assert session.post(f"{address}/tiny.ninfer", timeout=5).status_code == 501


def test_serve_refuses_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--dir", str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_stuck_peer_is_replaced(hub: Hub, pin: Pin, models: Path) -> None:
    # The first answers stop after 100 kB and say no more.
    hub.stall_at = 100_000
    pace = Pace(window=0.4, segments=4, attempts=10)

    def sleep(_: float) -> None:
        hub.stall_at = None

    assert whole(fetch(pin, models, surroundings=surroundings(pace=pace, sleep=sleep)))


def test_a_peer_that_is_stuck_for_ever_ends_the_attempt(hub: Hub, pin: Pin, models: Path) -> None:
    hub.stall_at = 100_000
    with pytest.raises(TransferError, match=r"gave up after 2 attempts.* are staged"):
        fetch(pin, models, surroundings=surroundings(pace=Pace(window=0.2, segments=2, attempts=2)))


def test_a_slow_segment_is_replaced_and_goes_on_where_it_was(hub: Hub, pin: Pin, models: Path) -> None:
    hub.drip = lambda number: 0.2 if number == 3 else 0.02
    pace = Pace(window=0.25, slow_factor=4.0, segments=4)
    with capture_logs() as lines:
        assert whole(fetch(pin, models, surroundings=surroundings(pace=pace)))
    assert "segment_replaced" in [line["event"] for line in lines]
    assert hub.sent < len(BODY) + CHUNK


def test_a_peer_that_is_slow_again_and_again_is_demoted(hub: Hub, pin: Pin, models: Path) -> None:
    with serve(Hub(BODY, drip=lambda _: 0.3)) as mirror, capture_logs() as lines:
        hub.drip = lambda _: 0.02
        pace = Pace(window=0.4, slow_factor=4.0, segments=6)
        assert whole(fetch(replace(pin, mirrors=(mirror.url,)), models, surroundings=surroundings(pace=pace)))
    assert [line["source"] for line in lines if line["event"] == "source_demoted"] == [mirror.url]


def test_offline_refuses_clearly(hub: Hub, tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    catalog = write_catalog(tmp_path, BODY, endpoint=hub.url)
    command = ["tiny", "--catalog", str(catalog), "--dir", str(models), "--offline"]
    assert main(command) == 2
    assert "offline, and no local source holds it" in capsys.readouterr().err
    assert main([*command, "--from", "https://example.com/models"]) == 2
    assert hub.requests == []


def test_addresses_of_the_own_network() -> None:
    for url in (
        "http://192.168.1.5:8090",
        "http://[fe80::1]/",
        "http://localhost:1",
        "http://box.local",
        "http://10.0.0.1",
    ):
        assert is_local(url), url
    for url in ("https://huggingface.co", "http://8.8.8.8", "http://localhost.example.com"):
        assert not is_local(url), url
    assert given_sources(["/a"], {"NINFER_SOURCES": "/b http://c"}) == ["/a", "/b", "http://c"]


def test_all_sources_are_named_when_none_has_it(hub: Hub, pin: Pin, models: Path) -> None:
    hub.status = 404
    with serve(Hub(b"", status=403)) as mirror, pytest.raises(CatalogError) as caught:
        fetch(replace(pin, mirrors=(mirror.url,)), models, surroundings=surroundings())
    assert hub.url in str(caught.value)
    assert mirror.url in str(caught.value)
