"""For maintainers: the catalog's key, its signature, and lists of chunk digests.

    python -m tools.sign_catalog key PRIVATE etc/keys/NAME.pub     a new Ed25519 key pair; keep PRIVATE off this machine
    python -m tools.sign_catalog sign PRIVATE [CATALOG]            writes CATALOG.sig
    python -m tools.sign_catalog check [CATALOG]                   is it signed by a key of etc/keys?
    python -m tools.sign_catalog chunks ARTIFACT LIST              the list, and the catalog's lines for it

PRIVATE is PEM, encrypted when NINFER_SIGNING_PASSWORD is set, and never inside the checkout.
"""

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from downloader.catalog import DEFAULT_CATALOG, read_catalog
from downloader.chunks import CHUNK_BYTES, check_chunk_bytes, format_chunk_list, read_digests
from downloader.errors import DownloadError
from downloader.signature import DEFAULT_KEYS, check_signature

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; 0 done, 1 not signed, 2 cannot work as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    key = actions.add_parser("key")
    key.add_argument("private", type=Path)
    key.add_argument("public", type=Path)
    sign = actions.add_parser("sign")
    sign.add_argument("private", type=Path)
    sign.add_argument("catalog", type=Path, nargs="?", default=DEFAULT_CATALOG)
    check = actions.add_parser("check")
    check.add_argument("catalog", type=Path, nargs="?", default=DEFAULT_CATALOG)
    check.add_argument("--keys", type=Path, default=DEFAULT_KEYS)
    chunks = actions.add_parser("chunks")
    chunks.add_argument("artifact", type=Path)
    chunks.add_argument("list", type=Path)
    chunks.add_argument("--chunk-bytes", type=int, default=CHUNK_BYTES)
    options = parser.parse_args(arguments)
    try:
        match options.action:
            case "key":
                make_key(options.private, options.public)
            case "sign":
                sign_catalog(options.private, options.catalog)
            case "check":
                fault = check_signature(options.catalog.read_bytes(), options.catalog, options.keys)
                print(fault or f"{options.catalog}: signed by a trusted key")
                return 1 if fault else 0
            case "chunks":
                print(list_chunks(options.artifact, options.list, options.chunk_bytes))
    except (OSError, ValueError, TypeError, DownloadError) as error:
        print(f"sign_catalog: {error}", file=sys.stderr)
        return 2
    return 0


def make_key(private: Path, public: Path) -> None:
    """A new key pair. Neither file may exist.

    Raises:
        ValueError: the private key would lie in the checkout.
        OSError: a file exists or cannot be written.
    """
    if private.resolve().is_relative_to(ROOT):
        raise ValueError(f"{private}: a private key does not belong into the checkout")
    if public.exists():
        raise FileExistsError(f"{public} exists")
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password) if (password := _password()) else serialization.NoEncryption(),
    )
    with os.fdopen(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
    public.parent.mkdir(parents=True, exist_ok=True)
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def sign_catalog(private: Path, catalog: Path) -> None:
    """Write `CATALOG.sig` for a catalog that reads well.

    Raises:
        ValueError: the key cannot be read or is no Ed25519 key.
        DownloadError: the catalog is broken.
    """
    key = serialization.load_pem_private_key(private.read_bytes(), _password())
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{private}: not an Ed25519 key")
    read_catalog(catalog)
    catalog.with_name(catalog.name + ".sig").write_bytes(key.sign(catalog.read_bytes()))


def list_chunks(artifact: Path, output: Path, chunk_bytes: int) -> str:
    """Write the digests of an artifact's chunks; returns the lines that go into the catalog."""
    digests = read_digests(artifact, check_chunk_bytes(chunk_bytes))
    text = format_chunk_list(chunk_bytes, digests.chunks)
    output.write_text(text, encoding="ascii")
    return (
        f'sha256 = "{digests.whole}"\nbytes = {artifact.stat().st_size}\n'
        f'chunks = "{output.name}"\nchunks_sha256 = "{hashlib.sha256(text.encode()).hexdigest()}"'
    )


def _password() -> bytes | None:
    return os.environ["NINFER_SIGNING_PASSWORD"].encode() if os.environ.get("NINFER_SIGNING_PASSWORD") else None


if __name__ == "__main__":
    sys.exit(main())
