"""Fetch what a branch holds now. Nothing is known of these bytes beforehand: no resuming, no check of content."""

import errno
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import filelock
import requests
import structlog

from downloader.catalog import SUPPORTED_FORMAT_VERSIONS, Unpinned
from downloader.chunks import Progress, no_progress
from downloader.errors import CatalogError, DownloadError, TransferError
from downloader.partials import unpinned_part
from downloader.transfer import BLOCK_BYTES, OpenSession, check_status, hub_session, public

log = structlog.get_logger(__name__)
_MAGIC = b"NINFER\0"
TIMEOUT_SECONDS = (10.0, 60.0)  # to connect, and without a byte


@dataclass(frozen=True)
class Got:
    """What came: where it lies, its SHA-256, its size, and the commit, where the hub named it."""

    path: Path
    sha256: str
    bytes: int
    commit: str


def promises(entry: Unpinned) -> str:
    """What a person must know before, in one line."""
    return (
        f"{entry.name} is not pinned: it is whatever {entry.branch} holds at this moment. Its size and SHA-256 are not "
        "known beforehand, so nothing can tell whether the bytes are the right ones, an interrupted download starts "
        "over, and tomorrow's may differ"
    )


def fetch_unpinned(
    entry: Unpinned, folder: Path, *, open_session: OpenSession = hub_session, progress: Progress = no_progress
) -> Got:
    """Fetch in one piece (parts of a moving branch could be of two objects), check that it is a container this
    program reads, and put it in place.

    Raises:
        TransferError: the network failed.
        DownloadError: the disk is full, another writer holds the file, or what came is no such container.
        CatalogError: the hub refuses.
    """
    part = unpinned_part(folder, entry)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / f"{entry.file}.lock", timeout=0):
            try:
                return _fetch(entry, folder, part, open_session, progress)
            finally:
                part.unlink(missing_ok=True)
    except filelock.Timeout as error:
        raise DownloadError(f"{folder / entry.file}: another download of {entry.name} is running") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(f"{folder}: the disk is full; {entry.name} starts over the next time") from error
        raise DownloadError(
            f"{folder}: {error.strerror or error}; choose a writable folder with NINFER_MODEL_DIR"
        ) from error


def _fetch(entry: Unpinned, folder: Path, part: Path, open_session: OpenSession, progress: Progress) -> Got:
    name = public(entry.url)
    with open_session() as session:
        try:
            response = session.get(
                entry.url, headers={"Accept-Encoding": "identity"}, stream=True, timeout=TIMEOUT_SECONDS
            )
            with response:
                check_status(response, name)
                total = _announced(response)
                if total and total > (free := shutil.disk_usage(folder).free):
                    raise DownloadError(f"{folder}: {total} bytes are needed for {entry.name} and {free} are free")
                with part.open("wb") as file:
                    sha256, size = _store(response, file, name, total, progress)
                commit = next(
                    (c for r in (*response.history, response) if (c := r.headers.get("X-Repo-Commit", ""))), ""
                )
        except requests.RequestException as error:
            raise TransferError(public(f"{name}: {error}; an unpinned download starts over")) from error
    if total and size != total:
        raise TransferError(f"{name}: {size} of {total} bytes came; an unpinned download starts over")
    target = folder / entry.file
    part.replace(target)
    return Got(target, sha256, size, commit if re.fullmatch(r"[0-9a-f]{40}", commit) else "")


def _store(response: requests.Response, file: IO[bytes], name: str, total: int, progress: Progress) -> tuple[str, int]:
    digest, size, head = hashlib.sha256(), 0, b""
    for block in response.iter_content(BLOCK_BYTES):
        if len(head) < 8 and len(head := head + block[:8]) >= 8:
            _check_head(head, name)  # before gigabytes follow
        digest.update(block)
        file.write(block)
        size += len(block)
        progress(size, max(total, size))
    if len(head) < 8:
        raise TransferError(f"{name}: the server sent {size} bytes, which is no artifact")
    file.flush()
    os.fsync(file.fileno())
    return digest.hexdigest(), size


def _check_head(head: bytes, name: str) -> None:
    if head[:7] != _MAGIC:
        raise CatalogError(f"{name}: what came is not a .ninfer file")
    if head[7] not in SUPPORTED_FORMAT_VERSIONS:
        known = ", ".join(map(str, SUPPORTED_FORMAT_VERSIONS))
        raise CatalogError(f"{name}: container version {head[7]}, this program reads {known}; use a pinned model")


def _announced(response: requests.Response) -> int:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdigit() else 0
