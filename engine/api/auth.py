"""API keys: either of two headers, compared in constant time, few wrong guesses a minute (spec/serving.md §3, X3).

Roles: `user` may generate and see the model; `admin` may also read what tells of other people's requests (`/metrics`,
`/v1/load`). The key of `--api-key` has no name and is an admin's.
"""

import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engine.exits import ConfigurationError
from engine.key_store import UNNAMED, Key, Role, digest, read_keys
from engine.log import get_logger

log = get_logger(__name__)

Verdict = Literal["accepted", "refused", "too_often"]

GUESSES = 10  # wrong keys that one peer may send at once
RECOVERY = 6.0  # seconds until it may send another
PEERS = 4096  # remembered


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a key. `cache_salt` keeps the caches of several keys apart (X11). `name` is None for an open
    server."""

    verdict: Verdict
    cache_salt: bytes = b""
    name: str | None = None
    role: Role = "admin"


@dataclass
class _Peer:
    guesses: float = GUESSES
    since: float = 0.0
    known: set[bytes] = field(default_factory=set)  # digests of the keys that this peer has sent and that were right


class Keys:
    """The accepted keys, kept as digests; no keys means an open server.

    Unnamed keys are given once; named ones are those of `store`, a file that is read again when it changes. Once that
    file has been there, a key is needed for good: who revokes the last one closes the server.

    A peer that has used up its guesses is refused without a look at its key, except for the keys that it has sent
    rightly before: behind a proxy all clients are one peer, and one that guesses must not lock the others out.
    """

    def __init__(
        self, keys: Iterable[str], now: Callable[[], float] = time.monotonic, store: Path | None = None
    ) -> None:  # fmt: skip
        """Take the keys.

        Raises:
            ConfigurationError: the store is damaged.
        """
        digests = dict.fromkeys(digest(key) for key in keys)
        self._unnamed = tuple(Key(name=UNNAMED, role="admin", sha256=one.hex()) for one in digests)
        self._now = now
        self._store = store
        self._stamp = self._look()
        named = None if store is None else read_keys(store)
        self._stored = named is not None
        self._take(named or ())
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    @property
    def configured(self) -> bool:
        """Whether a key is needed."""
        return self._stored or bool(self._known)

    def decide(self, headers: Mapping[str, str], peer: str | None) -> Decision:
        """Whether `Authorization: Bearer KEY` or `x-api-key: KEY` holds one of the keys. `peer` is an address."""
        self._follow()
        if not self.configured:
            return Decision("accepted")
        given = [digest(one) for one in _given(headers)]
        # Every pair is compared, so that the time says nothing about which key came close.
        matches = [
            (known, key) for one in given for known, key in self._known.items() if hmac.compare_digest(one, known)
        ]
        asking = self._peer(_network(peer))
        if asking.guesses < 1 and not any(known in asking.known for known, _ in matches):
            return Decision("too_often" if given else "refused")
        if matches:
            asking.known.update(known for known, _ in matches)
            known, key = matches[0]
            return Decision("accepted", self._salt(known), key.name, key.role)
        if given:
            asking.guesses -= 1
        return Decision("refused")

    def _salt(self, known: bytes) -> bytes:
        # One key that stays the only one needs no salt: everybody who may ask at all shares everything.
        if not self._stored and len(self._known) == 1:
            return b""
        return hashlib.sha256(b"cache " + known.hex().encode()).digest()[:16]

    def _take(self, named: Iterable[Key]) -> None:
        self._known = {key.digest: key for key in (*self._unnamed, *named)}

    def _follow(self) -> None:
        """Take the store's keys when the file is another one. A damaged file leaves the keys as they were."""
        stamp = self._look()
        if self._store is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            named = read_keys(self._store)
        except ConfigurationError as error:
            log.error("keys_not_taken", reason=str(error))
            return
        self._stored = self._stored or named is not None
        self._take(named or ())
        log.info("keys_taken", names=[key.name for key in named or ()])

    def _look(self) -> tuple[int, int, int] | None:
        if self._store is None:
            return None
        try:
            status = self._store.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _peer(self, network: str) -> _Peer:
        now = self._now()
        peer = self._peers.get(network)
        if peer is None:
            peer = self._peers[network] = _Peer(since=now)
            if len(self._peers) > PEERS:
                self._peers.popitem(last=False)
        peer.guesses = min(GUESSES, peer.guesses + (now - peer.since) / RECOVERY)
        peer.since = now
        self._peers.move_to_end(network)
        return peer


def has_key(headers: Mapping[str, str]) -> bool:
    """Whether any key came, right or wrong."""
    return bool(_given(headers))


def _given(headers: Mapping[str, str]) -> list[str]:
    scheme, _, token = headers.get("Authorization", "").strip().partition(" ")
    given = [token.strip()] if scheme.lower() == "bearer" else []
    if "x-api-key" in headers:
        given.append(headers["x-api-key"])
    return given


def _network(peer: str | None) -> str:
    """An IPv6 caller usually owns a whole /64."""
    try:
        address = ipaddress.ip_address((peer or "").partition("%")[0])
    except ValueError:
        return peer or ""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
