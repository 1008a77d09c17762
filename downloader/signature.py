"""The catalog's signature: Ed25519 over the file's exact bytes, in `FILE.sig` beside it (64 bytes).

Trusted public keys are `*.pub` files (PEM) in a folder that belongs to the program or its administrator, never beside
a catalog from elsewhere. The form is OpenSSL's, so that it can be checked without this program:
`openssl pkeyutl -verify -rawin -pubin -inkey KEY.pub -in models.toml -sigfile models.toml.sig`.
"""

from pathlib import Path
from typing import Literal, get_args

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from downloader.errors import CatalogError

Policy = Literal["off", "warn", "enforce"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
DEFAULT_KEYS = Path(__file__).resolve().parent.parent / "etc" / "keys"


def check_signature(content: bytes, path: Path, keys: Path) -> str:
    """What is wrong with the signature of a catalog's `content`, in one sentence; empty when a trusted key signed it.

    Raises:
        CatalogError: a key file is unreadable or holds no Ed25519 public key.
    """
    trusted = _trusted_keys(keys)
    signature_path = path.with_name(path.name + ".sig")
    try:
        signature = signature_path.read_bytes()
    except FileNotFoundError:
        return f"catalog {path} is not signed: there is no {signature_path.name} beside it"
    except OSError as error:
        return f"catalog {path}: its signature cannot be read: {error}"
    if not trusted:
        return f"catalog {path} is signed, and no key is trusted: {keys} holds no *.pub file"
    for key in trusted.values():
        try:
            key.verify(signature, content)
        except InvalidSignature:
            continue
        return ""
    return f"catalog {path}: its signature is not by {' or '.join(trusted)}: it was changed, or another key signed it"


def apply_policy(content: bytes, path: Path, keys: Path, policy: Policy) -> str:
    """The warning to print, empty where there is nothing to say.

    Raises:
        CatalogError: under `enforce`, anything but a good signature; the message says how to add a key.
    """
    if policy == "off":
        return ""
    fault = check_signature(content, path, keys)
    if fault and policy == "enforce":
        raise CatalogError(
            f"{fault}; the policy is enforce. Put the maintainer's public key, got from a place you trust, into "
            f"{keys} as NAME.pub (PEM, Ed25519) and the signature beside the catalog, "
            "or use --catalog-policy warn (NINFER_CATALOG_POLICY)"
        )
    return fault


def _trusted_keys(folder: Path) -> dict[str, Ed25519PublicKey]:
    found: dict[str, Ed25519PublicKey] = {}
    for path in sorted(folder.glob("*.pub")):
        try:
            key = load_pem_public_key(path.read_bytes())
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise CatalogError(f"{path}: not a public key in PEM: {error}") from error
        if not isinstance(key, Ed25519PublicKey):
            raise CatalogError(f"{path}: not an Ed25519 public key")
        found[path.name] = key
    return found
