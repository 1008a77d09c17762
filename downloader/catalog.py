"""The catalog: which bytes each model name stands for (etc/models.toml)."""

import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from downloader.chunks import CHUNK_BYTES, Layout, check_chunk_bytes, parse_chunk_list
from downloader.errors import CatalogError
from downloader.signature import DEFAULT_KEYS, Policy, apply_policy

SUPPORTED_FORMAT_VERSIONS = (3,)
DEFAULT_CATALOG = Path(__file__).resolve().parent.parent / "etc" / "models.toml"
COMMANDS = ("serve", "verify")  # words of the command line, so no model may be called that
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_BRANCH = re.compile(r"[A-Za-z0-9._-]+")


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
    mirrors: tuple[str, ...] = ()  # addresses of the same bytes elsewhere
    chunk_bytes: int = CHUNK_BYTES
    chunks: tuple[str, ...] | None = None  # SHA-256 of each chunk, where the catalog has them

    @property
    def layout(self) -> Layout:
        """How the artifact is cut into chunks."""
        return Layout(self.bytes, self.chunk_bytes)


@dataclass(frozen=True, kw_only=True)
class Unpinned:
    """Whatever a branch holds now. Nothing is known of its bytes, so nothing about them can be promised."""

    name: str
    file: str
    branch: str
    url: str
    note: str = ""


Entry = Pin | Unpinned
Warn = Callable[[str], None]


def read_catalog(
    path: Path = DEFAULT_CATALOG,
    environ: Mapping[str, str] = os.environ,
    *,
    policy: Policy = "off",
    keys: Path = DEFAULT_KEYS,
    warn: Warn = lambda _: None,
) -> dict[str, Entry]:
    """All entries, by name. `NINFER_HUB_ENDPOINT` replaces the catalog's hub; `warn` gets what `policy` warns of.

    Raises:
        CatalogError: the file is unreadable, not signed as `policy` asks, or an entry is incomplete or malformed.
    """
    try:
        content = path.read_bytes()
        if warning := apply_policy(content, path, keys, policy):
            warn(warning)
        raw = tomllib.loads(content.decode("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CatalogError(f"catalog {path}: {error}") from error
    endpoint = environ.get("NINFER_HUB_ENDPOINT") or str(raw.get("hub", {}).get("endpoint", ""))
    models = raw.get("models")
    if not isinstance(models, dict) or not models:
        raise CatalogError(f"catalog {path}: no [models.NAME] tables")
    for word in COMMANDS:
        if word in models:
            raise CatalogError(f"catalog {path}: no model may be called {word!r}, which is a command")
    return {name: _Record(path, name, record, endpoint.rstrip("/")).entry() for name, record in models.items()}


def entry(catalog: Mapping[str, Entry], name: str) -> Entry:
    """The entry called `name`.

    Raises:
        CatalogError: unknown name, or a container version this program does not read.
    """
    if name not in catalog:
        raise CatalogError(f"unknown model {name!r}; the catalog has {', '.join(sorted(catalog))}")
    found = catalog[name]
    if isinstance(found, Pin) and found.format_version not in SUPPORTED_FORMAT_VERSIONS:
        known = ", ".join(map(str, SUPPORTED_FORMAT_VERSIONS))
        raise CatalogError(
            f"{name}: the catalog pins container version {found.format_version}, this program reads {known}; "
            "update the program or use a catalog with a matching pin"
        )
    return found


def find(catalog: Mapping[str, Entry], name: str) -> Pin:
    """The pin called `name`.

    Raises:
        CatalogError: as `entry`, and for an entry without a pin, which nothing can vouch for.
    """
    found = entry(catalog, name)
    if isinstance(found, Unpinned):
        raise CatalogError(
            f"{name} is not pinned: it is whatever {found.branch} holds, so it cannot be verified. "
            f"`download-model {name}` fetches it, and a path to {found.file} in place of the name uses it"
        )
    return found


@dataclass(frozen=True)
class _Record:
    """One table of the file, and where it is from."""

    path: Path
    name: str
    values: Mapping[str, object]
    endpoint: str

    def entry(self) -> Entry:
        if not isinstance(self.values, dict):
            raise self.wrong("", "is not a table")
        if "tracks" in self.values:
            return self.unpinned()
        digest = self.text("sha256")
        if not _SHA256.fullmatch(digest):
            raise self.wrong("sha256", f"is {digest!r}, not 64 lower-case hex digits")
        revision, url = "embedded", None
        if "path" not in self.values:
            revision = self.text("revision")
            if not re.fullmatch(r"[0-9a-f]{40}", revision):
                raise self.wrong("revision", f"is {revision!r}, not a full commit id")
            url = self.hub_address(revision)
        size = self.count("bytes")
        chunk_bytes, chunks = self.chunks(size)
        return Pin(
            name=self.name,
            file=self.file_name("path" if url is None else "file"),
            bytes=size,
            sha256=digest,
            format_version=self.count("format_version"),
            revision=revision,
            url=url,
            path=self.path.parent / self.text("path") if url is None else None,
            note=self.note(),
            mirrors=self.mirrors(),
            chunk_bytes=chunk_bytes,
            chunks=chunks,
        )

    def unpinned(self) -> Unpinned:
        branch = self.text("tracks")
        if not _BRANCH.fullmatch(branch):
            raise self.wrong("tracks", f"is {branch!r}, not the name of a branch")
        for key in ("sha256", "bytes", "revision", "path", "chunks"):
            if key in self.values:
                raise self.wrong(key, "cannot be stated for an entry that tracks a branch")
        return Unpinned(
            name=self.name,
            file=self.file_name("save_as"),
            branch=branch,
            url=self.hub_address(branch),
            note=self.note(),
        )

    def hub_address(self, revision: str) -> str:
        if not self.endpoint.startswith(("https://", "http://")):
            raise CatalogError(f"catalog {self.path}: hub endpoint is {self.endpoint!r}, not an http(s) address")
        repository = quote(self.text("repository"))
        return f"{self.endpoint}/{repository}/resolve/{revision}/{quote(self.file_name('file'))}"

    def chunks(self, size: int) -> tuple[int, tuple[str, ...] | None]:
        if "chunks" not in self.values:
            try:
                return check_chunk_bytes(
                    self.count("chunk_bytes")
                ) if "chunk_bytes" in self.values else CHUNK_BYTES, None
            except ValueError as error:
                raise self.wrong("chunk_bytes", f"is wrong: {error}") from error
        # The digest of the list is in the catalog, so that the catalog's signature covers the list.
        file = self.path.parent / self.text("chunks")
        try:
            content = file.read_bytes()
            if hashlib.sha256(content).hexdigest() != self.text("chunks_sha256"):
                raise ValueError("its SHA-256 is not the catalog's chunks_sha256")
            return parse_chunk_list(content.decode("ascii"), size)
        except (OSError, ValueError) as error:
            raise self.wrong("chunks", f"{file}: {error}") from error

    def mirrors(self) -> tuple[str, ...]:
        values = self.values.get("mirrors", [])
        if not isinstance(values, list) or not all(
            isinstance(value, str) and value.startswith(("https://", "http://")) for value in values
        ):
            raise self.wrong("mirrors", f"is {values!r}, not a list of http(s) addresses of the file")
        return tuple(values)

    def note(self) -> str:
        return self.text("note") if "note" in self.values else ""

    def file_name(self, key: str) -> str:
        name = Path(self.text(key)).name if key == "path" else self.text(key)
        if not _FILE_NAME.fullmatch(name):
            raise CatalogError(f"catalog {self.path}: models.{self.name}: {name!r} is not a plain file name")
        return name

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, f"is {value!r}, not a text")
        return value

    def count(self, key: str) -> int:
        value = self.values.get(key)
        if type(value) is not int or value <= 0:
            raise self.wrong(key, f"is {value!r}, not a positive number")
        return value

    def wrong(self, key: str, what: str) -> CatalogError:
        return CatalogError(f"catalog {self.path}: models.{self.name}{'.' if key else ''}{key} {what}")
