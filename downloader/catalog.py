"""The catalog: which bytes each model name stands for (etc/models.toml)."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from downloader.errors import CatalogError

SUPPORTED_FORMAT_VERSIONS = (3,)
DEFAULT_CATALOG = Path(__file__).resolve().parent.parent / "etc" / "models.toml"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One artifact, by size and SHA-256. `url` is None when it ships with the program at `path`."""

    name: str
    file: str
    bytes: int
    sha256: str
    format_version: int
    revision: str
    url: str | None
    path: Path | None
    note: str = ""  # what users must know before they use it


def read_catalog(path: Path = DEFAULT_CATALOG, environ: Mapping[str, str] = os.environ) -> dict[str, Pin]:
    """All pins, by name. `NINFER_HUB_ENDPOINT` replaces the catalog's hub.

    Raises:
        CatalogError: the file is unreadable, or an entry is incomplete or malformed.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise CatalogError(f"catalog {path}: {error}") from error
    endpoint = environ.get("NINFER_HUB_ENDPOINT") or str(raw.get("hub", {}).get("endpoint", ""))
    models = raw.get("models")
    if not isinstance(models, dict) or not models:
        raise CatalogError(f"catalog {path}: no [models.NAME] tables")
    return {name: _pin(path, name, record, endpoint) for name, record in models.items()}


def find(catalog: Mapping[str, Pin], name: str) -> Pin:
    """The pin called `name`.

    Raises:
        CatalogError: unknown name, or a container version this program does not read.
    """
    if name not in catalog:
        raise CatalogError(f"unknown model {name!r}; the catalog has {', '.join(sorted(catalog))}")
    pin = catalog[name]
    if pin.format_version not in SUPPORTED_FORMAT_VERSIONS:
        known = ", ".join(map(str, SUPPORTED_FORMAT_VERSIONS))
        raise CatalogError(
            f"{name}: the catalog pins container version {pin.format_version}, this program reads {known}; "
            "update the program or use a catalog with a matching pin"
        )
    return pin


def _pin(path: Path, name: str, record: Mapping[str, object], endpoint: str) -> Pin:
    def text(key: str) -> str:
        value = record.get(key)
        if not isinstance(value, str) or not value:
            raise CatalogError(f"catalog {path}: models.{name}.{key} is {value!r}, not a text")
        return value

    def count(key: str) -> int:
        value = record.get(key)
        if type(value) is not int or value <= 0:
            raise CatalogError(f"catalog {path}: models.{name}.{key} is {value!r}, not a positive number")
        return value

    digest = text("sha256")
    if not _SHA256.fullmatch(digest):
        raise CatalogError(f"catalog {path}: models.{name}.sha256 is {digest!r}, not 64 lower-case hex digits")
    embedded = "path" in record
    note = text("note") if "note" in record else ""
    file = Path(text("path")).name if embedded else text("file")
    if not _FILE_NAME.fullmatch(file) or file in (".", ".."):
        raise CatalogError(f"catalog {path}: models.{name}: {file!r} is not a plain file name")
    if embedded:
        return Pin(
            name=name,
            file=file,
            bytes=count("bytes"),
            sha256=digest,
            format_version=count("format_version"),
            revision="embedded",
            url=None,
            path=path.parent / text("path"),
            note=note,
        )
    revision = text("revision")
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise CatalogError(f"catalog {path}: models.{name}.revision is {revision!r}, not a full commit id")
    if not endpoint.startswith(("https://", "http://")):
        raise CatalogError(f"catalog {path}: hub endpoint is {endpoint!r}, not an http(s) address")
    repository = quote(text("repository"))
    return Pin(
        name=name,
        file=file,
        bytes=count("bytes"),
        sha256=digest,
        format_version=count("format_version"),
        revision=revision,
        url=f"{endpoint.rstrip('/')}/{repository}/resolve/{revision}/{quote(file)}",
        path=None,
        note=note,
    )
