"""Bring a pinned artifact into place: staged, resumed across process death, verified, then promoted atomically."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import structlog

from downloader import staging as stage
from downloader.catalog import Pin
from downloader.chunks import Digests, Progress, no_progress
from downloader.errors import CatalogError, DownloadError
from downloader.partials import superseded
from downloader.segments import Pace, Segments
from downloader.settle import settle
from downloader.sources import Source, open_sources
from downloader.transfer import OpenSession, hub_session, peer_session, plain_session, public
from downloader.verify import Inspection, inspect, is_remembered, remember

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the world provides: network, clock, disk, other boxes. Replaced in tests."""

    hub_session: OpenSession = hub_session
    plain_session: OpenSession = plain_session
    peer_session: OpenSession = peer_session
    disk: stage.Disk = field(default_factory=stage.Disk)
    pace: Pace = field(default_factory=Pace)
    sources: Sequence[str] = ()  # before the hub: folders, files, addresses
    offline: bool = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """Where progress goes: bytes transferred, and bytes hashed."""

    transfer: Progress = no_progress
    verify: Progress = no_progress


def locate(pin: Pin, folder: Path) -> Path:
    """Where the artifact lies once it is in place."""
    return pin.path if pin.path is not None else folder / pin.file


def fetch(
    pin: Pin,
    folder: Path,
    *,
    report: Report = Report(),
    surroundings: Surroundings = Surroundings(),
    trust_size: bool = False,
) -> Path:
    """Return the path of the verified artifact, downloading what is missing and mending what is damaged.

    `trust_size` accepts a file by its size alone (the seed's `NINFER_SKIP_SHA256=1`).

    Raises:
        TransferError: the network gave up; a later call continues.
        DownloadError: the disk is full, another writer holds the file, or the bytes are not the pinned ones.
        CatalogError: no source gives the object, or the embedded artifact was altered.
    """
    target = locate(pin, folder)
    if trust_size and target.is_file() and target.stat().st_size == pin.bytes:
        log.warning("accepted_by_size_alone", path=str(target), bytes=pin.bytes)
        return target
    if is_remembered(target, pin):
        return target
    found = inspect(target, pin, report.verify) if target.exists() else None
    if found is not None and found.good:
        return target
    if pin.url is None:
        state = "is missing" if found is None else f"is not the shipped one (SHA-256 {pin.sha256})"
        raise CatalogError(f"{target}: the embedded artifact {state}; reinstall the program")
    with _only_writer(pin, folder):
        if is_remembered(target, pin):  # somebody else was quicker
            return target
        with _sources(pin, target, surroundings) as sources:
            if found is not None:
                _mend_or_leave(pin, folder, target, found)
            _download(pin, folder, sources, report=report, surroundings=surroundings, trust_size=trust_size)
    return target


def repair(
    pin: Pin, folder: Path, *, report: Report = Report(), surroundings: Surroundings = Surroundings()
) -> list[int]:
    """Read an artifact that is in place and fetch only its damaged chunks; returns those, none when it is good.

    A repair that was interrupted goes on where it was.

    Raises:
        DownloadError: it is not there, nothing is known about its chunks, or as `fetch`.
    """
    target = locate(pin, folder)
    if pin.url is None:
        raise CatalogError(f"{target} came with the program; reinstall that to repair it")
    if not target.exists() and not stage.part_path(folder, pin).exists():
        raise DownloadError(f"{target}: not there; `download-model {pin.name}` fetches it")
    with _only_writer(pin, folder):
        found = inspect(target, pin, report.verify) if target.exists() else None
        if found is not None and found.good:
            return []
        if found is not None and not found.sound:
            known = "no chunk of it is right" if found.expected else "the digests of its chunks are not known"
            raise DownloadError(
                f"{target}: not the pinned bytes, and {known}; `download-model {pin.name}` fetches it whole"
            )
        with _sources(pin, target, surroundings) as sources:
            if found is not None and not stage.part_path(folder, pin).exists():
                _adopt(pin, folder, target, found)
            return _download(pin, folder, sources, report=report, surroundings=surroundings, trust_size=False)


@contextmanager
def _only_writer(pin: Pin, folder: Path) -> Iterator[None]:
    """Held while anything of a pin is written; the system lets go of it when the process dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _folder_error(folder, error) from error
    lock = filelock.FileLock(folder / f"{pin.file}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise DownloadError(f"{lock.lock_file}: another download of {pin.name} is running; wait for it") from error
    except OSError as error:
        raise _folder_error(folder, error) from error
    try:
        yield
    finally:
        lock.release()


def _mend_or_leave(pin: Pin, folder: Path, target: Path, found: Inspection) -> None:
    """A file that is damaged in some chunks is mended; anything else stays until the pinned one is complete."""
    if len(found.sound) * 2 > pin.layout.count and not stage.part_path(folder, pin).exists():
        _adopt(pin, folder, target, found)
        return
    log.warning(
        "existing_file_is_not_the_pinned_one",
        path=str(target),
        bytes=target.stat().st_size,
        pinned_bytes=pin.bytes,
        found=_container_version(target),
        hint="it is replaced once the pinned file is complete; a version 2 file can be kept under another name",
    )


def _adopt(pin: Pin, folder: Path, target: Path, found: Inspection) -> None:
    where = pin.layout.named(found.damaged)
    log.warning("damaged_ranges", path=str(target), where=where, effect="only these are fetched again")
    try:
        stage.adopt(target, folder, pin, found.sound)
    except OSError as error:
        raise _folder_error(folder, error) from error


def _download(
    pin: Pin,
    folder: Path,
    sources: Sequence[Source],
    *,
    report: Report,
    surroundings: Surroundings,
    trust_size: bool,
) -> list[int]:
    """Complete the staged file and promote it; the chunks that were missing."""
    target = locate(pin, folder)
    for path in superseded(folder, [pin]):
        log.warning("old_partial", path=str(path), bytes=path.stat().st_size, remove="download-model --clean")
    try:
        staged = stage.open_staging(folder, pin, surroundings.disk)
        _check_space(pin, folder, staged, surroundings.disk)
        if staged.staged_bytes:
            log.info("resuming", path=str(staged.path), staged_bytes=staged.staged_bytes, total_bytes=pin.bytes)
        segments = Segments(pin, staged, sources, surroundings.pace, report.transfer)
        missing = staged.missing()
        segments.fetch(missing)
        digests: Digests | None = None
        if trust_size:
            staged.sync()
        else:
            digests = settle(pin, staged, segments, public(pin.url or ""), report.verify)
        _promote(staged.path, target)
        if digests is not None:
            remember(target, pin, digests)
        stage.discard(folder, pin)
    except OSError as error:
        raise _disk_error(error, pin, folder, surroundings.disk) from error
    return missing


@contextmanager
def _sources(pin: Pin, target: Path, surroundings: Surroundings) -> Iterator[list[Source]]:
    pace = surroundings.pace
    sources = open_sources(
        pin,
        surroundings.sources,
        target=target,
        offline=surroundings.offline,
        hub_session=surroundings.hub_session,
        plain_session=surroundings.plain_session,
        peer_session=surroundings.peer_session,
        timeout=(pace.connect, pace.window),
    )
    try:
        yield sources
    finally:
        for source in sources:
            source.close()


def _check_space(pin: Pin, folder: Path, staged: stage.Staging, disk: stage.Disk) -> None:
    free = disk.free_bytes(folder)
    needed = pin.bytes - staged.allocated_bytes
    if needed > free:
        raise DownloadError(
            f"{folder}: {needed} more bytes are needed for {pin.name} and {free} are free; "
            f"free {needed - free} bytes or choose another folder with NINFER_MODEL_DIR"
        )


def _disk_error(error: OSError, pin: Pin, folder: Path, disk: stage.Disk) -> DownloadError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return _folder_error(folder, error)
    path = stage.part_path(folder, pin)
    staged = min(path.stat().st_blocks * 512, pin.bytes) if path.exists() else 0
    short = max(pin.bytes - staged - disk.free_bytes(folder), 0)
    return DownloadError(
        f"{folder}: the disk is full, {short} bytes short for {pin.name}; "
        f"{staged} bytes are staged and the next run continues there"
    )


def _folder_error(folder: Path, error: OSError) -> DownloadError:
    return DownloadError(f"{folder}: {error.strerror or error}; choose a writable folder with NINFER_MODEL_DIR")


def _promote(staged: Path, target: Path) -> None:
    staged.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _container_version(path: Path) -> str:
    with path.open("rb") as file:
        magic = file.read(8)
    return f"container version {magic[7]}" if magic[:7] == b"NINFER\0" and len(magic) == 8 else "not a .ninfer file"
