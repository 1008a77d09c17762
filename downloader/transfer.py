"""One HTTP transfer into the staged file: every answer is checked against the plan before a byte is kept."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import requests
import structlog

from downloader.catalog import Pin
from downloader.errors import CatalogError, RangesRefusedError, TransferError
from downloader.staging import Staging
from downloader.verify import Progress

BLOCK_BYTES = 64 * 1024  # what a broken connection can lose
TIMEOUT_SECONDS = (10.0, 60.0)  # to connect, and without a byte
OpenSession = Callable[[], requests.Session]
log = structlog.get_logger(__name__)

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def continue_download(session: requests.Session, pin: Pin, staging: Staging, progress: Progress) -> None:
    """Fetch from `staging.length` to the end.

    A 200 for a range starts over from byte 0; a 206 must start and end where it was asked to.

    Raises:
        TransferError: the server or the network failed; what came is staged.
        CatalogError: the server says this will never work (no access, no such object).
        OSError: the disk is full or failed.
    """
    with _get(session, pin, staging.length) as response:
        if response.status_code == requests.codes.ok and staging.length:
            log.warning("server_ignores_range", url=pin.url, dropped_bytes=staging.length)
            staging.restart()
        _check_length(response, pin.bytes - staging.length)
        staging.mark_seam()
        received = 0
        for block in _blocks(response):
            if staging.length + len(block) > pin.bytes:
                raise TransferError(f"{pin.url}: the server sent more than the pinned {pin.bytes} bytes")
            staging.write(block)
            received += len(block)
            progress(staging.length, pin.bytes)
        if not received:
            raise TransferError(f"{pin.url}: the server sent an empty body")


def fetch_chunk(session: requests.Session, pin: Pin, begin: int, end: int) -> bytes:
    """The bytes [begin, end) of the artifact.

    Raises:
        RangesRefusedError: the server answers with the whole object.
        TransferError: the server did not send exactly that range.
        CatalogError: as in `continue_download`.
    """
    with _get(session, pin, begin, end) as response:
        if response.status_code != requests.codes.partial:
            raise RangesRefusedError(f"{pin.url}: the server sends no ranges, and bytes {begin}-{end - 1} are damaged")
        data = b"".join(_blocks(response, end - begin))
    if len(data) != end - begin:
        raise TransferError(f"{pin.url}: asked for {end - begin} bytes at {begin}, got {len(data)}")
    return data


@contextmanager
def _get(session: requests.Session, pin: Pin, begin: int, end: int | None = None) -> Iterator[requests.Response]:
    assert pin.url is not None
    headers = {"Accept-Encoding": "identity"}
    if begin or end is not None:
        headers["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"
    try:
        response = session.get(pin.url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS)
    except requests.RequestException as error:
        raise TransferError(f"{pin.url}: {error}") from error
    try:
        _check_status(response, pin, begin, pin.bytes if end is None else end)
        yield response
    finally:
        response.close()


def _check_status(response: requests.Response, pin: Pin, begin: int, end: int) -> None:
    status = response.status_code
    if status in (requests.codes.unauthorized, requests.codes.forbidden):
        raise CatalogError(f"{pin.url}: access denied ({status}); set HF_TOKEN to a token that may read it")
    if status in (requests.codes.not_found, requests.codes.gone):
        raise CatalogError(f"{pin.url}: no such object ({status}); the catalog may be out of date")
    if status == requests.codes.partial:
        match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match is None or tuple(map(int, match.groups())) != (begin, end - 1, pin.bytes):
            raise TransferError(
                f"{pin.url}: asked for bytes {begin}-{end - 1} of {pin.bytes}, "
                f"the server answered {response.headers.get('Content-Range')!r}"
            )
    elif status != requests.codes.ok:
        raise TransferError(f"{pin.url}: the server answered {status} {response.reason}")


def _check_length(response: requests.Response, expected: int) -> None:
    stated = response.headers.get("Content-Length")
    if stated is not None and stated.isdigit() and int(stated) != expected:
        raise TransferError(f"{response.url}: expected {expected} bytes, the server announces {stated}")


def _blocks(response: requests.Response, limit: int | None = None) -> Iterator[bytes]:
    seen = 0
    try:
        for block in response.iter_content(BLOCK_BYTES):
            seen += len(block)
            yield block
            if limit is not None and seen > limit:
                return
    except requests.RequestException as error:
        raise TransferError(f"{response.url}: the transfer broke off: {error}") from error
