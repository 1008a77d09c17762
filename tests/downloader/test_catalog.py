"""The catalog file and the command around it."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from downloader.catalog import DEFAULT_CATALOG, Pin, find, read_catalog
from downloader.chunks import read_digests
from downloader.cli import main
from downloader.errors import CatalogError
from downloader.verify import is_verified, record_path
from tests.downloader.hub import REVISION, write_catalog


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("bytes = 4", "bytes = -4", "bytes is -4"),
        ("bytes = 4", "bytes = true", "bytes is True"),
        ('file = "tiny.ninfer"', 'file = "../tiny.ninfer"', "not a plain file name"),
        ('revision = "0123', 'revision = "main', "not a full commit id"),
        ('sha256 = "', 'sha256 = "X', "64 lower-case hex digits"),
        ("[models.tiny]", "[other.tiny]", "no \\[models.NAME\\] tables"),
        ("[models.tiny]", "[models.tiny", "catalog"),
        ('endpoint = "http:', 'endpoint = "ftp:', "not an http"),
        ("chunk_bytes = 262144", "chunk_bytes = 1", "not from 65536"),
        ("chunk_bytes = 262144", 'mirrors = ["file:///etc"]', "not a list of http"),
        ("chunk_bytes = 262144", 'chunks = "nowhere"', "nowhere"),
        ("[models.tiny]", "[models.serve]", "no model may be called 'serve'"),
    ],
)
def test_a_broken_entry_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = write_catalog(tmp_path, b"body")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(CatalogError, match=words):
        read_catalog(path, {})


def test_an_unknown_name_lists_what_there_is(tmp_path: Path) -> None:
    catalog = read_catalog(write_catalog(tmp_path, b"body"), {})
    with pytest.raises(CatalogError, match=r"unknown model 'nope'; the catalog has tiny"):
        find(catalog, "nope")


def test_every_shipped_pin_is_complete() -> None:
    catalog = read_catalog(DEFAULT_CATALOG, {})
    assert {"nano", "qwen38-27b", "qwen36-27b", "qwen36-35b-a3b"} <= catalog.keys()
    for name in catalog.keys() - {"qwen36-35b-v2"}:
        pin = find(catalog, name)
        assert pin.path is None or read_digests(pin.path, pin.chunk_bytes).whole == pin.sha256


def test_an_embedded_artifact_is_verified_in_place(tmp_path: Path) -> None:
    body = b"embedded"
    (tmp_path / "e.ninfer").write_bytes(body)
    catalog = tmp_path / "models.toml"
    catalog.write_text(
        f'[models.e]\npath = "e.ninfer"\nbytes = {len(body)}\nformat_version = 3\n'
        f'sha256 = "{hashlib.sha256(body).hexdigest()}"\n'
    )
    command = [sys.executable, "-m", "downloader", "e", "--catalog", str(catalog), "--dir", str(tmp_path / "models")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "e.ninfer").write_bytes(b"Embedded")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not the shipped one" in done.stderr


def test_left_overs_are_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--catalog", str(write_catalog(tmp_path, b"body")), "--dir", str(tmp_path)]
    mine = tmp_path / f"tiny.ninfer.{REVISION}.part"
    old = [tmp_path / f"tiny.ninfer.{'0' * 40}.part{end}" for end in ("", ".journal", ".rejected")]
    for path in (mine, *old):
        path.write_bytes(b"x")
    assert main(["--list", *command]) == 0
    said = capsys.readouterr().out
    assert all(str(path) in said for path in old)
    assert str(mine) not in said
    assert main(["--clean", *command]) == 0
    assert mine.exists()
    assert not any(path.exists() for path in old)
    assert main(["tiny", "--clean", *command]) == 0
    assert not mine.exists()


def test_a_record_that_cannot_be_kept_costs_only_the_next_read(tmp_path: Path) -> None:
    path = tmp_path / "tiny.ninfer"
    path.write_bytes(b"body")
    pin = Pin(
        name="tiny",
        file="tiny.ninfer",
        bytes=4,
        sha256=hashlib.sha256(b"body").hexdigest(),
        format_version=3,
        revision="",
        url=None,
        path=path,
    )
    # Neither replaced nor removed, as on a read-only file system; root may write everywhere else.
    (record_path(path) / "in the way").mkdir(parents=True)
    assert is_verified(path, pin)
    assert is_verified(path, pin)
