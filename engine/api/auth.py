"""API keys: either of two headers, compared in constant time, few wrong guesses a minute (spec/serving.md §3, X3)."""

import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["accepted", "refused", "too_often"]

GUESSES = 10  # wrong keys that one peer may send at once
RECOVERY = 6.0  # seconds until it may send another
PEERS = 4096  # remembered


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a key. `cache_salt` keeps the caches of several keys apart (X11)."""

    verdict: Verdict
    cache_salt: bytes = b""


@dataclass
class _Peer:
    guesses: float = GUESSES
    since: float = 0.0
    known: set[int] = field(default_factory=set)  # places of the keys that this peer has sent and that were right


class Keys:
    """The accepted keys, kept as digests; no keys means an open server.

    A peer that has used up its guesses is refused without a look at its key, except for the keys that it has sent
    rightly before: behind a proxy all clients are one peer, and one that guesses must not lock the others out.
    """

    def __init__(self, keys: Iterable[str], now: Callable[[], float] = time.monotonic) -> None:
        self._digests = tuple(dict.fromkeys(_digest(key) for key in keys))
        self._now = now
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    @property
    def configured(self) -> bool:
        """Whether a key is needed."""
        return bool(self._digests)

    def decide(self, headers: Mapping[str, str], peer: str | None) -> Decision:
        """Whether `Authorization: Bearer KEY` or `x-api-key: KEY` holds one of the keys. `peer` is an address."""
        if not self._digests:
            return Decision("accepted")
        given = _given(headers)
        # Every pair is compared, so that the time says nothing about which key came close.
        matches = [
            place
            for one in given
            for place, known in enumerate(self._digests)
            if hmac.compare_digest(_digest(one), known)
        ]
        asking = self._peer(_network(peer))
        if asking.guesses < 1 and not asking.known.intersection(matches):
            return Decision("too_often" if given else "refused")
        if matches:
            asking.known.update(matches)
            # One key needs no salt: everybody who may ask at all shares everything.
            salt = b"" if len(self._digests) == 1 else _digest("cache " + self._digests[matches[0]].hex())[:16]
            return Decision("accepted", salt)
        if given:
            asking.guesses -= 1
        return Decision("refused")

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


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
