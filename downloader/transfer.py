"""One HTTP answer: it is checked against the plan before a byte is kept."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import requests
import urllib3

from downloader.catalog import Pin
from downloader.errors import RangesRefusedError, SourceError, SurplusError, TransferError

BLOCK_BYTES = 64 * 1024
OpenSession = Callable[[], requests.Session]

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_QUERY = re.compile(r"\?[^\s'\")]+")
_REFUSED = (requests.codes.unauthorized, requests.codes.forbidden)
_GONE = (requests.codes.not_found, requests.codes.gone)


def hub_session(environ: Mapping[str, str] = os.environ) -> requests.Session:
    """A session that sends `HF_TOKEN` (or the token file) to the hub; `requests` drops it on a redirect elsewhere."""
    session = plain_session()
    token = environ.get("HF_TOKEN")
    file = Path(environ.get("HF_TOKEN_PATH") or Path(environ.get("HF_HOME", "~/.cache/huggingface")) / "token")
    if not token and file.expanduser().is_file():
        token = file.expanduser().read_text(encoding="utf-8").strip()
    if token:
        session.auth = _BearerToken(token)
    return session


def plain_session() -> requests.Session:
    """A session without the token; proxies come from the environment."""
    session = requests.Session()
    session.headers["User-Agent"] = "ninfer-appliance"
    return session


def peer_session() -> requests.Session:
    """A session for a box on the own network, which no proxy stands before."""
    session = plain_session()
    session.trust_env = False
    return session


def public(text: str) -> str:
    """An address or a message without what may be secret: user, password, query (signed addresses)."""
    parts = urlsplit(text) if text.startswith(("http://", "https://")) else None
    if parts is not None and parts.username is not None:
        text = text.replace(parts.netloc, parts.netloc.rpartition("@")[2], 1)
    return _QUERY.sub("?…", text)


@contextmanager
def get(
    session: requests.Session, url: str, pin: Pin, begin: int, end: int | None, *, timeout: tuple[float, float]
) -> Iterator[Iterator[bytes]]:
    """The bytes [begin, end) of `pin` at `url`, or without `end` the whole object, as they come.

    Raises:
        RangesRefusedError: the server answers a range with the whole object.
        TransferError: the network or the server failed, or it did not answer with what was asked for.
        SourceError: it says that this will never work.
    """
    headers = {"Accept-Encoding": "identity"}
    if end is not None:
        headers["Range"] = f"bytes={begin}-{end - 1}"
    try:
        response = session.get(url, headers=headers, stream=True, timeout=timeout)
    except requests.RequestException as error:
        raise TransferError(public(f"{public(url)}: {error}")) from error
    try:
        _check(response, public(url), pin, begin, end)
        yield _blocks(response, public(url), (pin.bytes if end is None else end) - begin)
    finally:
        response.close()


def _check(response: requests.Response, name: str, pin: Pin, begin: int, end: int | None) -> None:
    check_status(response, name)
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise TransferError(
            f"{name}: the server sent {response.headers['Content-Encoding']!r}, which was not asked for"
        )
    # The hub says what it holds in the first of its answers, the one that redirects.
    for answer in (*response.history, response):
        size, tag = answer.headers.get("X-Linked-Size", ""), answer.headers.get("X-Linked-Etag", "").strip('"')
        if (size.isdigit() and int(size) != pin.bytes) or (re.fullmatch(r"[0-9a-f]{64}", tag) and tag != pin.sha256):
            raise SourceError(f"{name}: the server holds another object ({size} bytes, {tag}), not the pinned one")
    whole = (0, pin.bytes)
    if response.status_code == requests.codes.ok:
        if end is not None and (begin, end) != whole:
            raise RangesRefusedError(f"{name}: the server sends no ranges")
        expected = pin.bytes
    else:
        asked = whole if end is None else (begin, end)
        stated = response.headers.get("Content-Range", "")
        match = _RANGE.fullmatch(stated)
        if match is None or tuple(map(int, match.groups())) != (asked[0], asked[1] - 1, pin.bytes):
            raise TransferError(
                f"{name}: asked for bytes {asked[0]}-{asked[1] - 1} of {pin.bytes}, the server answered {stated!r}"
            )
        expected = asked[1] - asked[0]
    length = response.headers.get("Content-Length", "")
    if length.isdigit() and int(length) != expected:
        raise TransferError(f"{name}: expected {expected} bytes, the server announces {length}")


def check_status(response: requests.Response, name: str) -> None:
    """Refuse an answer that is neither 200 nor 206.

    Raises:
        SourceError: it says that this will never work.
        TransferError: it may work later.
    """
    status = response.status_code
    if status in _REFUSED:
        raise SourceError(f"{name}: access denied ({status}); set HF_TOKEN to a token that may read it")
    if status in _GONE:
        raise SourceError(f"{name}: no such object ({status}); the catalog may be out of date")
    if status == requests.codes.requested_range_not_satisfiable:
        raise SourceError(f"{name}: the object there is shorter than the pinned one ({status})")
    if status not in (requests.codes.ok, requests.codes.partial):
        after = response.headers.get("Retry-After", "")
        pause = float(after) if after.isdigit() else 0.0
        raise TransferError(f"{name}: the server answered {status} {response.reason}", pause=pause)


def _blocks(response: requests.Response, name: str, expected: int) -> Iterator[bytes]:
    seen = 0
    while True:
        try:
            # Whatever has come, at once: to wait for a full block would hide a peer that only trickles.
            block = response.raw.read1(BLOCK_BYTES, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise TransferError(public(f"{name}: the transfer broke off: {error}")) from error
        if not block:
            break
        seen += len(block)
        if seen > expected:
            raise SurplusError(f"{name}: the server sent more than the {expected} bytes it was asked for")
        yield block
    if not seen:
        raise TransferError(f"{name}: the server sent an empty body")


class _BearerToken(requests.auth.AuthBase):
    """Keeps `requests` from replacing the token by a .netrc entry; dropped by it on a redirect to another host."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request
