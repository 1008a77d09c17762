"""Bring a pinned artifact into place: staged, resumed across process death, verified, then promoted atomically."""

import errno
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import requests
import structlog

from downloader import staging as stage
from downloader.catalog import Pin
from downloader.errors import CatalogError, DownloadError, RangesRefusedError, TransferError
from downloader.transfer import OpenSession, continue_download, fetch_chunk
from downloader.verify import Progress, is_verified, no_progress, remember, sha256_file

log = structlog.get_logger(__name__)


def open_session(environ: Mapping[str, str] = os.environ) -> requests.Session:
    """A session that sends `HF_TOKEN` (or the token file) to the hub; `requests` drops it on a redirect elsewhere."""
    session = requests.Session()
    session.headers["User-Agent"] = "ninfer-appliance"
    token = environ.get("HF_TOKEN")
    file = Path(environ.get("HF_TOKEN_PATH") or Path(environ.get("HF_HOME", "~/.cache/huggingface")) / "token")
    if not token and file.expanduser().is_file():
        token = file.expanduser().read_text(encoding="utf-8").strip()
    if token:
        session.auth = _BearerToken(token)
    return session


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the world provides: network, clock, disk. Replaced in tests."""

    open_session: OpenSession = open_session
    sleep: Callable[[float], None] = time.sleep
    free_bytes: Callable[[Path], int] = field(default=lambda folder: shutil.disk_usage(folder).free)
    chunk_bytes: int = stage.CHUNK_BYTES
    attempts: int = 8  # consecutive ones without a new byte
    longest_pause: float = 60.0


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
    """Return the path of the verified artifact, downloading what is missing.

    `trust_size` accepts a file by its size alone (the seed's `NINFER_SKIP_SHA256=1`).

    Raises:
        TransferError: the network gave up; a later call continues.
        DownloadError: the disk is full, another writer holds the file, or the bytes are not the pinned ones.
        CatalogError: the hub refuses the object, or the embedded artifact was altered.
    """
    target = locate(pin, folder)
    if _in_place(target, pin, report, trust_size):
        return target
    if pin.url is None:
        state = "is missing" if not target.exists() else f"is not the shipped one (SHA-256 {pin.sha256})"
        raise CatalogError(f"{target}: the embedded artifact {state}; reinstall the program")
    _make_folder(folder)
    lock = filelock.FileLock(target.with_name(target.name + ".lock"))
    try:
        with lock.acquire(timeout=0):
            _download(pin, folder, target=target, report=report, surroundings=surroundings, trust_size=trust_size)
    except filelock.Timeout as error:
        raise DownloadError(f"{lock.lock_file}: another download of {pin.name} is running; wait for it") from error
    return target


def _in_place(target: Path, pin: Pin, report: Report, trust_size: bool) -> bool:
    if trust_size and target.is_file() and target.stat().st_size == pin.bytes:
        log.warning("accepted_by_size_alone", path=str(target), bytes=pin.bytes)
        return True
    if is_verified(target, pin, report.verify):
        return True
    if target.exists() and pin.url is not None:
        log.warning(
            "existing_file_is_not_the_pinned_one",
            path=str(target),
            bytes=target.stat().st_size,
            pinned_bytes=pin.bytes,
            found=_container_version(target),
            hint="it is replaced once the pinned file is complete; a version 2 file can be kept under another name",
        )
    return False


def _download(
    pin: Pin, folder: Path, *, target: Path, report: Report, surroundings: Surroundings, trust_size: bool
) -> None:
    for path in stage.other_partials(folder, pin):
        log.warning(
            "old_partial", path=str(path), bytes=path.stat().st_size, remove=f"download-model --clean {pin.name}"
        )
    try:
        staged = stage.open_staging(folder, pin, surroundings.chunk_bytes)
    except OSError as error:
        raise DownloadError(f"{folder}: {error.strerror}; choose a writable folder with NINFER_MODEL_DIR") from error
    try:
        _check_space(pin, folder, staged.length, surroundings)
        session = surroundings.open_session()
        try:
            if staged.length > pin.bytes:
                log.warning("staged_file_too_long", path=str(staged.path), dropped_bytes=staged.length)
                staged.restart()
            if staged.length:
                log.info("resuming", path=str(staged.path), staged_bytes=staged.length, total_bytes=pin.bytes)
                _mend_staged(session, pin, staged, surroundings)
            while staged.length < pin.bytes:
                _persist(lambda: continue_download(session, pin, staged, report.transfer), pin, staged, surroundings)
            staged.sync()
            if not trust_size:
                _settle(session, pin, staged, report, surroundings)
        finally:
            session.close()
    except OSError as error:
        raise _disk_error(error, pin, folder, staged.length, surroundings) from error
    finally:
        staged.close()
    _promote(staged.path, target)
    if not trust_size:
        remember(target, pin)
    stage.discard(folder, pin)


def _persist(action: Callable[[], None], pin: Pin, staged: stage.Staging, surroundings: Surroundings) -> None:
    """Run `action` until it succeeds; give up after too many failures in a row without a new byte."""
    failures = 0
    while True:
        before = staged.length
        try:
            return action()
        except RangesRefusedError:
            raise
        except TransferError as error:
            failures = failures + 1 if staged.length <= before else 0
            if failures >= surroundings.attempts:
                raise TransferError(
                    f"{error}; gave up after {failures} attempts without a new byte; "
                    f"{staged.length} of {pin.bytes} bytes are staged and the next run continues there"
                ) from error
            pause = min(2.0**failures, surroundings.longest_pause)
            log.warning("transfer_interrupted", error=str(error), staged_bytes=staged.length, retry_seconds=pause)
            staged.sync()
            surroundings.sleep(pause)


def _mend_staged(session: requests.Session, pin: Pin, staged: stage.Staging, surroundings: Surroundings) -> None:
    """Before continuing: fetch again what the disk damaged since it was journaled."""
    try:
        for chunk in staged.damaged_chunks():
            _fetch_again(session, pin, staged, chunk, surroundings)
    except RangesRefusedError as error:
        log.warning("starting_over", reason=str(error), dropped_bytes=staged.length)
        staged.restart()


def _settle(
    session: requests.Session, pin: Pin, staged: stage.Staging, report: Report, surroundings: Surroundings
) -> None:
    """Make sure the staged file is the pinned one, fetching suspicious chunks again."""
    if sha256_file(staged.path, report.verify) == pin.sha256:
        return
    changed = False
    try:
        for chunk in staged.suspect_chunks():
            changed |= _fetch_again(session, pin, staged, chunk, surroundings)
    except RangesRefusedError as error:
        log.warning("cannot_repair", reason=str(error))
    staged.sync()
    if changed and sha256_file(staged.path, report.verify) == pin.sha256:
        return
    rejected = staged.path.with_name(f"{staged.path.name}.rejected")
    staged.path.replace(rejected)
    staged.journal_path.unlink(missing_ok=True)
    raise DownloadError(
        f"{pin.url}: content differs from the pin (expected SHA-256 {pin.sha256}); it was put aside as {rejected}, "
        "and the next run starts over. If this repeats, the server, a proxy or this machine's memory alters the bytes"
    )


def _fetch_again(
    session: requests.Session, pin: Pin, staged: stage.Staging, chunk: int, surroundings: Surroundings
) -> bool:
    begin, end = staged.chunk_range(chunk)
    changed = False

    def action() -> None:
        nonlocal changed
        changed = staged.replace_chunk(chunk, fetch_chunk(session, pin, begin, end))

    _persist(action, pin, staged, surroundings)
    log.warning("range_fetched_again", first_byte=begin, last_byte=end - 1, bytes_differed=changed)
    return changed


def _check_space(pin: Pin, folder: Path, staged_bytes: int, surroundings: Surroundings) -> None:
    free = surroundings.free_bytes(folder)
    needed = pin.bytes - staged_bytes
    if needed > free:
        raise DownloadError(
            f"{folder}: {needed} more bytes are needed for {pin.name} and {free} are free; "
            f"free {needed - free} bytes or choose another folder with NINFER_MODEL_DIR"
        )


def _disk_error(error: OSError, pin: Pin, folder: Path, staged_bytes: int, surroundings: Surroundings) -> DownloadError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        short = max(pin.bytes - staged_bytes - surroundings.free_bytes(folder), 0)
        return DownloadError(
            f"{folder}: the disk is full, {short} bytes short for {pin.name}; "
            f"{staged_bytes} bytes are staged and the next run continues there"
        )
    return DownloadError(f"{folder}: {error}")


def _promote(staged: Path, target: Path) -> None:
    staged.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f"{folder}: {error.strerror}; choose a writable folder with NINFER_MODEL_DIR") from error


def _container_version(path: Path) -> str:
    with path.open("rb") as file:
        magic = file.read(8)
    return f"container version {magic[7]}" if magic[:7] == b"NINFER\0" and len(magic) == 8 else "not a .ninfer file"


class _BearerToken(requests.auth.AuthBase):
    """Keeps `requests` from replacing the token by a .netrc entry; dropped by it on a redirect to another host."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request
