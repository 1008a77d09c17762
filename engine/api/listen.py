"""The listening socket, made before anything slow happens. No imports beyond the standard library."""

import resource
import socket

from engine.exits import ConfigurationError

BACKLOG = 128
DESCRIPTORS = 8192


def listen(host: str, port: int) -> socket.socket:
    """A TCP socket that already accepts; connections inherit its dead-peer detection (spec/serving.md §3).

    Raises:
        ConfigurationError: the address cannot be bound.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    options = (
        (socket.SOL_SOCKET, "SO_REUSEADDR", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 3),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 15_000),
    )
    try:
        for level, name, value in options:
            if hasattr(socket, name):
                listener.setsockopt(level, getattr(socket, name), value)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    listener.setblocking(False)
    _allow_descriptors()
    return listener


def _allow_descriptors() -> None:
    """Raise the soft limit, which is often 1024, so that idle connections do not keep new ones out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
