"""Who can reach an address that we listen on, and under which names."""

import ipaddress
import socket

from engine.exits import ConfigurationError

REFUSE, WITHOUT_A_KEY = "refuse", "without-a-key"
OPEN_NETWORK = (REFUSE, WITHOUT_A_KEY)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. A name that does not resolve is not loopback."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def check_exposure(host: str, open_network: str, *, key: bool) -> None:
    """Refuse to serve a network without a key, unless told so in words.

    Raises:
        ConfigurationError: saying what would work.
    """
    if key or open_network == WITHOUT_A_KEY or is_loopback(host):
        return
    raise ConfigurationError(
        f"--host {host} lets others on the network use this server, and no key is set; make one with "
        "ninfer-appliance keys add NAME or set NINFER_API_KEY, or stay on this machine with --host 127.0.0.1; "
        f"--open-network {WITHOUT_A_KEY} serves everybody who can reach it"
    )


def machine_names() -> tuple[str, ...]:
    """What this machine is called by itself and by multicast DNS; asks no name server."""
    name = socket.gethostname().lower().rstrip(".")
    short = name.partition(".")[0]
    return tuple(dict.fromkeys(one for one in (name, short, f"{short}.local") if short))
