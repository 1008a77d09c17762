"""A corpus: streams of text by domain, pinned by the hashes in its manifest."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.exits import ConfigurationError
from engine.quality.windows import read_text


@dataclass(frozen=True)
class Stream:
    """Text that is read on its own."""

    id: str
    domain: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Streams, and what to call them in a report: `mode` is full, quick or text."""

    name: str
    mode: str
    sha256: str
    streams: tuple[Stream, ...]


class _Stream(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    domain: str
    path: str
    bytes: int
    sha256: str
    licence: str
    origin: str


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    streams: list[_Stream]


def read_corpus(manifest: Path, *, quick: bool = False) -> Corpus:
    """The corpus that a manifest describes; with `quick` the first stream of each domain.

    Raises:
        ConfigurationError: the manifest cannot be used, or a stream is not the text it pins.
    """
    text = read_text(manifest)
    try:
        record = msgspec.json.decode(text, type=_Manifest)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{manifest} is not a corpus manifest: {error}") from None
    if not record.streams or not re.fullmatch(r"[A-Za-z0-9._-]+", record.name):
        raise ConfigurationError(f"{manifest} has no streams, or its name {record.name!r} cannot name a folder")
    streams: list[Stream] = []
    for entry in record.streams:
        if quick and any(stream.domain == entry.domain for stream in streams):
            continue
        if Path(entry.path).name != entry.path:
            raise ConfigurationError(f"{manifest}: {entry.path!r} is not a file beside it")
        path = manifest.parent / entry.path
        content = read_text(path)
        digest = hashlib.sha256(content.encode()).hexdigest()
        if digest != entry.sha256:
            raise ConfigurationError(f"{path} has the SHA-256 {digest}; {manifest.name} pins {entry.sha256}")
        streams.append(Stream(entry.id, entry.domain, content))
    return Corpus(record.name, "quick" if quick else "full", _digest(text), tuple(streams))


def read_single(path: Path) -> Corpus:
    """A corpus of one file. ConfigurationError when it cannot be used."""
    text = read_text(path)
    return Corpus(re.sub(r"[^A-Za-z0-9._-]", "_", path.stem), "text", _digest(text), (Stream(path.name, "text", text),))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
