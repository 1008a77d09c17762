"""What an engine is started with, and what its proof is bound to."""

from importlib import metadata
from typing import Any, Protocol

from appliance.run_folder import RunFiles
from appliance.settings import DRAIN_SECONDS, Settings
from engine.options import Options


class PlanLike(Protocol):
    """What the controller needs of a plan."""

    @property
    def device(self) -> str:
        """`cpu`, or `cuda:` and an index in bus order."""
        ...

    @property
    def max_context(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def kv_capacity(self) -> int: ...
    def as_dict(self) -> dict[str, Any]: ...


def engine_config(settings: Settings, files: RunFiles, plan: PlanLike) -> dict[str, object]:
    """The engine's configuration file, by field name of its `EngineConfig`."""
    options = settings.options
    return {
        "artifact": str(settings.artifact),
        "socket": str(files.engine_socket),
        "device": plan.device.removeprefix("cuda:"),
        "kv_dtype": options.kv_dtype,
        "gdn_state_fp16": options.gdn_state_fp16,
        "max_context": plan.max_context,
        "kv_capacity": plan.kv_capacity,
        "lanes": plan.lanes,
        "max_pending": options.max_pending_requests,
        "pending_timeout_ms": options.pending_timeout_ms,
        "prefill_chunk": options.prefill_chunk,
        "drain_seconds": DRAIN_SECONDS,
        "log_level": options.log_level,
        "log_json": options.log_json,
    }


def proof_key(options: Options, fingerprint: str) -> dict[str, str]:
    """All that may change the tokens of a greedy answer: artifact, device, number formats, program versions."""
    return {
        "fingerprint": fingerprint,
        "device": options.device,
        "kv_dtype": options.kv_dtype,
        "gdn_state_fp16": str(options.gdn_state_fp16),
        "prefill_chunk": str(options.prefill_chunk),
        **{package: _version(package) for package in ("ninfer-appliance", "torch", "triton")},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "-"
