"""Where the bytes of one digest can come from: the hub, a mirror, another box, a folder or a USB stick."""

import ipaddress
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlsplit

import requests
import structlog

from downloader.catalog import Pin
from downloader.errors import CatalogError, SourceError, TransferError
from downloader.transfer import BLOCK_BYTES, OpenSession, get, public

log = structlog.get_logger(__name__)
Reading = AbstractContextManager[Iterator[bytes]]  # an answer while it is read


class Source(Protocol):
    """Gives ranges of one artifact. `read` and `read_whole` may be called by several threads at once."""

    @property
    def name(self) -> str:
        """What people call it: an address without secrets, or a path."""

    def read(self, begin: int, end: int) -> Reading:
        """The bytes [begin, end) as they come.

        Raises:
            RangesRefusedError: it gives only whole objects.
            TransferError: it failed, and may work later.
            SourceError: it does not have these bytes.
        """

    def read_whole(self) -> Reading:
        """All bytes as they come; raises as `read`."""

    def close(self) -> None:
        """Let connections go."""


class HttpSource:
    """The artifact at an address."""

    def __init__(self, url: str, pin: Pin, open_session: OpenSession, timeout: tuple[float, float]) -> None:
        """`timeout`: seconds to connect, and without a byte."""
        self.name = public(url)
        self._url = url
        self._pin = pin
        self._open_session = open_session
        self._timeout = timeout
        self._idle: list[requests.Session] = []  # a session belongs to one thread at a time

    def read(self, begin: int, end: int) -> Reading:
        """As `Source.read`."""
        return self._read(begin, end)

    def read_whole(self) -> Reading:
        """As `Source.read_whole`."""
        return self._read(0, None)

    def close(self) -> None:
        """As `Source.close`."""
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _read(self, begin: int, end: int | None) -> Iterator[Iterator[bytes]]:
        session = self._idle.pop() if self._idle else self._open_session()
        try:
            with get(session, self._url, self._pin, begin, end, timeout=self._timeout) as blocks:
                yield blocks
        except BaseException:
            session.close()
            raise
        self._idle.append(session)


class FileSource:
    """The artifact in a folder: a disk, a USB stick, a network mount."""

    def __init__(self, path: Path, pin: Pin) -> None:
        self.name = str(path)
        self._path = path
        self._bytes = pin.bytes

    def read(self, begin: int, end: int) -> Reading:
        """As `Source.read`."""
        return self._read(begin, end)

    def read_whole(self) -> Reading:
        """As `Source.read_whole`."""
        return self._read(0, self._bytes)

    def close(self) -> None:
        """Nothing is kept open."""

    @contextmanager
    def _read(self, begin: int, end: int) -> Iterator[Iterator[bytes]]:
        # Opened for every range, so that a stick that was pulled out and put back works again.
        try:
            file = self._path.open("rb")
        except OSError as error:
            raise TransferError(f"{self.name}: {error.strerror}") from error
        with file:
            if os.fstat(file.fileno()).st_size != self._bytes:
                raise SourceError(f"{self.name}: not {self._bytes} bytes long any more")
            file.seek(begin)
            yield self._blocks(file.read, end - begin)

    def _blocks(self, read: Callable[[int], bytes], left: int) -> Iterator[bytes]:
        while left:
            try:
                block = read(min(left, BLOCK_BYTES))
            except OSError as error:
                raise TransferError(f"{self.name}: {error.strerror}") from error
            if not block:
                return
            left -= len(block)
            yield block


def open_sources(
    pin: Pin,
    given: Sequence[str],
    *,
    target: Path,
    offline: bool,
    hub_session: OpenSession,
    plain_session: OpenSession,
    peer_session: OpenSession,
    timeout: tuple[float, float],
) -> list[Source]:
    """The sources of `pin` in the order in which they are used: those `given` (addresses of folders on other boxes or
    of the file itself, folders, files), then the hub, then the catalog's mirrors. `offline` leaves out what is not
    on this machine or its own network.

    Raises:
        CatalogError: nothing is left.
    """
    sources: list[Source] = []
    for text in given:
        if not text.startswith(("http://", "https://")):
            path = _file_in(Path(text).expanduser(), pin, target)
            if path is not None:
                sources.append(FileSource(path, pin))
            continue
        url = text if text.endswith("/" + pin.file) else f"{text.rstrip('/')}/{quote(pin.file)}"
        local = is_local(url)
        if offline and not local:
            log.warning("source_not_used", source=public(url), reason="offline, and it is not on this network")
            continue
        sources.append(HttpSource(url, pin, peer_session if local else plain_session, timeout))
    if not offline:
        if pin.url is not None:
            sources.append(HttpSource(pin.url, pin, hub_session, timeout))
        sources.extend(HttpSource(url, pin, plain_session, timeout) for url in pin.mirrors)
    if not sources:
        why = "offline, and no local source holds it" if offline else "no source holds it"
        raise CatalogError(
            f"{pin.name}: {why}; name a folder, a stick or another box with --from (NINFER_SOURCES): "
            f"--from /media/usb, --from http://192.168.1.20:8090" + (", or run without --offline" if offline else "")
        )
    return sources


def is_local(url: str) -> bool:
    """Whether an address is on this machine or its own network, as far as the address alone tells."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".local")
    return address.is_private or address.is_loopback or address.is_link_local


def given_sources(flags: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Sources from the command line, then from `NINFER_SOURCES` (separated by spaces)."""
    return list(dict.fromkeys([*flags, *environ.get("NINFER_SOURCES", "").split()]))


def _file_in(path: Path, pin: Pin, target: Path) -> Path | None:
    file = path / pin.file if path.is_dir() else path
    try:
        size = file.stat().st_size
        reason = f"{size} bytes, not {pin.bytes}" if size != pin.bytes else ""
        if target.exists() and file.samefile(target):
            reason = "it is the file to be replaced"
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        log.warning("source_not_used", source=str(file), reason=reason)
        return None
    return file
