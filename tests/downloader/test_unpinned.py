"""The entry that tracks a branch: it says what it cannot promise."""

import hashlib
from pathlib import Path

import pytest

from downloader.catalog import DEFAULT_CATALOG, Unpinned, entry, find, read_catalog
from downloader.cli import main
from downloader.errors import CatalogError
from tests.downloader.hub import Hub, serve

BODY = b"NINFER\0\3" + bytes(200_000)


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    return ["moving", "--catalog", str(tmp_path / "models.toml"), "--dir", str(tmp_path / "models")]


def _catalog(tmp_path: Path, hub: Hub, extra: str = "") -> None:
    (tmp_path / "models.toml").write_text(
        f'[hub]\nendpoint = "{hub.url}"\n[models.moving]\nrepository = "someone/tiny"\ntracks = "main"\n'
        f'file = "tiny.ninfer"\nsave_as = "tiny-main.ninfer"\n{extra}'
    )


def test_it_has_its_own_name_is_never_resumed_and_tells_what_it_got(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(Hub(BODY, headers={"X-Repo-Commit": "a" * 40}, break_after=[100_000])) as hub:
        _catalog(tmp_path, hub)
        assert main(command) == 1
        said = capsys.readouterr().err
        assert "moving is not pinned" in said
        assert "starts over" in said
        assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny-main.ninfer.lock"]
        assert main(command) == 0
        assert hub.ranges() == ["", ""]
    said = capsys.readouterr().out
    assert "not verified" in said
    assert f"SHA-256 {hashlib.sha256(BODY).hexdigest()}" in said
    assert "commit " + "a" * 40 in said
    assert (tmp_path / "models" / "tiny-main.ninfer").read_bytes() == BODY


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"<html>" + bytes(100), "not a .ninfer file"), (b"NINFER\0\4" + bytes(100), "version 4"), (b"NI", "no artifact")],
)
def test_what_is_no_artifact_is_not_kept(
    tmp_path: Path, command: list[str], body: bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(Hub(body)) as hub:
        _catalog(tmp_path, hub)
        assert main(command) in (1, 2)
    assert words in capsys.readouterr().err
    assert not (tmp_path / "models" / "tiny-main.ninfer").exists()


@pytest.mark.parametrize("action", ["--verify", "--repair", "--offline"])
def test_what_cannot_be_done_with_it_is_refused(
    tmp_path: Path, command: list[str], action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(Hub(BODY)) as hub:
        _catalog(tmp_path, hub)
        assert main([*command, action]) == 2
        assert hub.requests == []
    assert "not pinned" in capsys.readouterr().err


def test_nothing_may_be_stated_about_its_bytes(tmp_path: Path) -> None:
    _catalog(tmp_path, Hub(BODY, url="http://127.0.0.1:9"), f'sha256 = "{"0" * 64}"\n')
    with pytest.raises(CatalogError, match="sha256 cannot be stated"):
        read_catalog(tmp_path / "models.toml", {})


def test_the_shipped_one(tmp_path: Path) -> None:
    catalog = read_catalog(DEFAULT_CATALOG, {})
    shipped = entry(catalog, "qwen36-35b-v2")
    assert isinstance(shipped, Unpinned)
    assert shipped.url.endswith("/resolve/main/qwen3_6_35b_a3b.ninfer")
    assert shipped.file not in {other.file for other in catalog.values() if other is not shipped}
    with pytest.raises(CatalogError, match=r"is not pinned.*cannot be verified"):
        find(catalog, "qwen36-35b-v2")
