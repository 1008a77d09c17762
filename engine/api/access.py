"""Who may see what the box says about itself beyond its phase: its keepers, by a key or by sitting at it."""

import ipaddress

from aiohttp import web

from engine.api.auth import has_key
from engine.api.service import SERVICE

FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")


def is_keeper(request: web.Request) -> bool:
    """Whether a right key came, or the caller is on this machine. A wrong key counts as a guess."""
    keys = request.app[SERVICE].keys
    if keys.configured and has_key(request.headers):
        return keys.decide(request.headers, request.remote).verdict == "accepted"
    return is_local(request)


def is_local(request: web.Request) -> bool:
    """Whether the caller is on this machine, and no proxy and no web page in a browser here speaks for another."""
    if any(header in request.headers for header in FORWARDED) or "Origin" in request.headers:
        return False
    # The name too: a page of a foreign name that resolves to this machine is still a foreign page.
    return _loopback(request.remote) and _loopback(_name(request.host))


def _name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _loopback(address: str | None) -> bool:
    if address == "localhost":
        return True
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
