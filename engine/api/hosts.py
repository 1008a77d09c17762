"""The names under which clients may ask for this server.

A web page whose own name is made to resolve to this machine (DNS rebinding) counts as the same origin here, so that
its scripts could read every answer. Its requests carry its name in `Host`, and that gives it away. A number is no
name, and cannot be rebound.
"""

import ipaddress
from collections.abc import Iterable

from engine.network import machine_names

EVERY = "*"
CONTAINERS = ("host.docker.internal", "host.containers.internal")  # what a container calls the machine it is on


class Hosts:
    """The allowed names: `localhost`, the machine's own, and those given. `.example.org` allows what is below it, `*`
    everything."""

    def __init__(self, given: Iterable[str], machine: Iterable[str] | None = None) -> None:
        names = {one.lower().rstrip(".") for one in given}
        self._every = EVERY in names
        self._below = (".localhost", *(one for one in names if one.startswith(".")))
        self._names = {"localhost", *CONTAINERS, *(machine_names() if machine is None else machine), *names}

    def allows(self, header: str) -> bool:
        """Whether `Host: header` names this server. The port does not matter."""
        if self._every:
            return True
        name = _without_port(header.strip()).lower().rstrip(".")
        return name in self._names or name.endswith(self._below) or _is_number(name)


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header.partition("]")[0].removeprefix("[")
    name, colon, port = header.rpartition(":")
    return name if colon and port.isascii() and port.isdigit() else header


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
