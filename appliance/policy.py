"""The numbers of the crash policy, apart from the machine that uses them (appliance/boot.py)."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Limits of the crash policy; times in seconds."""

    exits: int = 5  # this many ends of one program within `window` end the box
    window: float = 600.0
    backoff: float = 1.0  # before the first restart; doubles
    backoff_limit: float = 30.0
    fetch_backoff_limit: float = 300.0
    connect: float = 120.0  # from the start of the engine to its first word
    boot_silence: float = 600.0  # the longest step of a boot that reports nothing
    silence: float = 30.0  # no answer while ready
    proof: float = 60.0
    idle: float = 300.0  # without a request, before the engine is proved again; a proof starts the count anew
    linger: float = 2.0  # a failed box answers /health with the reason for this long
