"""Telling systemd how the start goes: datagrams to NOTIFY_SOCKET (sd_notify(3))."""

import os
import socket
from collections.abc import Mapping


def notify(*lines: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send lines such as `READY=1`; False when nobody asked for them or nobody listens."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.sendto("\n".join(lines).encode(), address)
    except OSError:
        return False
    return True
