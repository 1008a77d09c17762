"""API keys: either of two headers, compared in constant time (spec/serving.md §3, cases X3)."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping


class Keys:
    """The accepted keys, kept as digests; no keys means an open server."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def accept(self, headers: Mapping[str, str]) -> bool:
        """Whether `Authorization: Bearer KEY` or `x-api-key: KEY` holds one of the keys."""
        if not self._digests:
            return True
        scheme, _, token = headers.get("Authorization", "").strip().partition(" ")
        given = [token.strip()] if scheme.lower() == "bearer" else []
        if "x-api-key" in headers:
            given.append(headers["x-api-key"])
        # Every pair is compared, so that the time says nothing about which key came close.
        matches = [hmac.compare_digest(_digest(one), known) for one in given for known in self._digests]
        return any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
