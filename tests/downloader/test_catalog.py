"""The catalog file and the command around it."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from downloader.catalog import DEFAULT_CATALOG, Pin, find, read_catalog
from downloader.errors import CatalogError
from downloader.verify import is_verified, record_path, sha256_file
from tests.downloader.hub import write_catalog


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
    for name in catalog:
        pin = find(catalog, name)
        assert pin.path is None or sha256_file(pin.path) == pin.sha256


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


@pytest.mark.parametrize("arguments", [["--list"], ["tiny", "--clean"]])
def test_list_and_clean(tmp_path: Path, arguments: list[str]) -> None:
    catalog = write_catalog(tmp_path, b"body")
    part = tmp_path / f"tiny.ninfer.{'0' * 40}.part"
    part.write_bytes(b"x")
    command = [sys.executable, "-m", "downloader", *arguments, "--catalog", str(catalog), "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert part.exists() == ("--clean" not in arguments)


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
