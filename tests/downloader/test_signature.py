"""The catalog's signature under each policy, and the maintainers' tool."""

import subprocess
from pathlib import Path

import pytest

from downloader.catalog import DEFAULT_CATALOG, read_catalog
from downloader.chunks import parse_chunk_list
from downloader.cli import main
from downloader.errors import CatalogError
from downloader.signature import DEFAULT_KEYS, Policy, check_signature
from tests.downloader.hub import write_catalog
from tests.downloader.world import BODY, CHUNK
from tools import sign_catalog


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder with one trusted key; its private half is `private` beside it."""
    assert sign_catalog.main(["key", str(tmp_path / "private"), str(tmp_path / "keys" / "maintainer.pub")]) == 0
    return tmp_path / "keys"


@pytest.fixture
def catalog(tmp_path: Path, keys: Path) -> Path:
    path = write_catalog(tmp_path, BODY, listed=True)
    assert sign_catalog.main(["sign", str(tmp_path / "private"), str(path)]) == 0
    return path


def _good(catalog: Path, keys: Path) -> None:
    pass


def _absent(catalog: Path, keys: Path) -> None:
    catalog.with_name("models.toml.sig").unlink()


def _bad(catalog: Path, keys: Path) -> None:
    catalog.write_text(catalog.read_text() + " ")


def _no_key(catalog: Path, keys: Path) -> None:
    (keys / "maintainer.pub").unlink()


def _other_key(catalog: Path, keys: Path) -> None:
    (keys / "maintainer.pub").unlink()
    assert sign_catalog.main(["key", str(catalog.parent / "other"), str(keys / "other.pub")]) == 0


FAULTS = {
    _good: "",
    _absent: "is not signed",
    _bad: "is not by maintainer.pub: it was changed",
    _no_key: "no key is trusted",
    _other_key: "is not by other.pub",
}


@pytest.mark.parametrize("policy", ["off", "warn", "enforce"])
@pytest.mark.parametrize("state", FAULTS, ids=lambda state: state.__name__.removeprefix("_"))
def test_every_state_under_every_policy(catalog: Path, keys: Path, policy: Policy, state: object) -> None:
    state(catalog, keys)  # type: ignore[operator]  # a key of FAULTS
    fault = FAULTS[state]  # type: ignore[index]  # as above
    warnings: list[str] = []
    if fault and policy == "enforce":
        with pytest.raises(CatalogError, match=rf"{fault}.*Put the maintainer's public key.*as NAME.pub"):
            read_catalog(catalog, {}, policy=policy, keys=keys, warn=warnings.append)
        return
    assert "tiny" in read_catalog(catalog, {}, policy=policy, keys=keys, warn=warnings.append)
    assert len(warnings) == (1 if fault and policy == "warn" else 0)
    assert all(fault in warning for warning in warnings)


def test_the_signature_covers_the_list_of_chunks(catalog: Path, keys: Path) -> None:
    file = catalog.with_name("tiny.chunks")
    file.write_text(file.read_text().replace("a", "b", 1))
    with pytest.raises(CatalogError, match=r"tiny.chunks.*not the catalog's chunks_sha256"):
        read_catalog(catalog, {}, policy="enforce", keys=keys)


def test_a_key_file_that_is_none_is_named(catalog: Path, keys: Path) -> None:
    (keys / "note.pub").write_text("ssh-ed25519 AAAA")
    with pytest.raises(CatalogError, match=r"note.pub: not a public key in PEM"):
        read_catalog(catalog, {}, policy="warn", keys=keys)


def test_openssl_agrees(catalog: Path, keys: Path) -> None:
    command = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", str(keys / "maintainer.pub")]
    command += ["-in", str(catalog), "-sigfile", f"{catalog}.sig"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no openssl here")
    assert done.returncode == 0, done.stderr


def test_the_command_prints_one_line_or_refuses(
    catalog: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--list", "--catalog", str(catalog), "--dir", str(tmp_path), "--catalog-keys", str(keys)]
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    _absent(catalog, keys)
    assert main(command) == 0
    said = capsys.readouterr().err
    assert said.startswith("download-model: warning: catalog")
    assert said.count("\n") == 1
    monkeypatch.setenv("NINFER_CATALOG_POLICY", "enforce")
    assert main(command) == 2
    assert main([*command, "--catalog-policy", "off"]) == 0
    monkeypatch.setenv("NINFER_CATALOG_POLICY", "perhaps")
    assert main(command) == 2
    assert "off, warn, enforce work" in capsys.readouterr().err


def test_no_key_is_shipped_before_there_is_one() -> None:
    # When the maintainers have a key, the catalog of a release is signed by it; this then says so.
    if DEFAULT_KEYS.exists():
        assert check_signature(DEFAULT_CATALOG.read_bytes(), DEFAULT_CATALOG, DEFAULT_KEYS) == ""
    else:
        assert not DEFAULT_CATALOG.with_name("models.toml.sig").exists()


def test_the_tool(tmp_path: Path, catalog: Path, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600
    assert sign_catalog.main(["check", str(catalog), "--keys", str(keys)]) == 0
    _bad(catalog, keys)
    assert sign_catalog.main(["check", str(catalog), "--keys", str(keys)]) == 1
    inside = sign_catalog.ROOT / "private.pem"
    assert sign_catalog.main(["key", str(inside), str(keys / "x.pub")]) == 2
    assert not inside.exists()
    artifact = tmp_path / "a.ninfer"
    artifact.write_bytes(BODY)
    command = ["chunks", str(artifact), str(tmp_path / "a.chunks"), "--chunk-bytes", str(CHUNK)]
    capsys.readouterr()
    assert sign_catalog.main(command) == 0
    assert 'chunks = "a.chunks"' in capsys.readouterr().out
    chunk_bytes, digests = parse_chunk_list((tmp_path / "a.chunks").read_text(), len(BODY))
    assert (chunk_bytes, len(digests)) == (CHUNK, 13)
