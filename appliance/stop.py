"""`ninfer-appliance stop`: ask the box of this home to end, and wait."""

import contextlib
import os
import signal

from appliance.box import STOP_SECONDS
from appliance.owner import running_owner, wait_until_gone
from appliance.settings import Settings
from engine.exits import NInferError


class StillRunningError(NInferError):
    """The box did not end in time."""


def stop(settings: Settings, seconds: float = STOP_SECONDS + 10) -> bool:
    """Stop the box; False when none runs.

    Raises:
        StillRunningError: it still runs after `seconds`.
    """
    owner = running_owner(settings.state)
    if owner is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(owner.pid, signal.SIGTERM)
    if not wait_until_gone(owner, settings.state, seconds):
        raise StillRunningError(
            f"the box (pid {owner.pid}) still runs after {seconds:g} s; kill -9 {owner.pid} ends it"
        )
    return True
