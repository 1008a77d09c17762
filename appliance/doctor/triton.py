"""Can compiled kernels be kept? (case C9)"""

import shlex

from appliance.doctor.device import used
from appliance.doctor.facts import Facts
from appliance.doctor.finding import Finding
from appliance.settings import Settings

NAME = "triton"


def check(settings: Settings, facts: Facts) -> Finding:
    """The cache is writable, and code may run from it."""
    cache = facts.triton_cache
    if not used(settings, facts):
        return Finding(check=NAME, sentence="no card, so no kernel is compiled")
    ours = shlex.quote(str(settings.cache / "triton"))
    if not cache.folder:
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"{cache.present} is a file; compiled kernels need a folder",
            command=f"mv {shlex.quote(str(cache.present))} {shlex.quote(str(cache.present) + '.old')}",
        )
    if not cache.writable:
        return Finding(
            check=NAME,
            level="warning",
            sentence=f"{cache.present} is not writable for user {facts.user}: kernels are compiled at every start",
            command=f"export TRITON_CACHE_DIR={ours}",
        )
    if not cache.runs_code:
        return Finding(
            check=NAME,
            level="bad",
            sentence=f"{cache.present} is mounted noexec: kernels that are compiled there cannot be loaded",
            command=f"export TRITON_CACHE_DIR={ours}",
        )
    return Finding(check=NAME, sentence=f"{cache.path} {'is writable' if cache.exists else 'can be made'}")
