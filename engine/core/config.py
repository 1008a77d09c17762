"""`EngineConfig`: what the engine process is started with, one JSON file written by its parent."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from engine.exits import ConfigurationError
from engine.log import LEVELS
from engine.memory.pages import PAGE_TOKENS, pages_for

Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]

# Longest path that fits in a sockaddr_un with its terminating zero.
MAX_SOCKET_PATH = 107


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resolved numbers only: nothing is `auto` but `device`."""

    artifact: Path
    socket: Path
    device: str = "auto"
    kv_dtype: str = "bf16"
    gdn_state_fp16: bool = False
    max_context: Count = 8192
    kv_capacity: Count = 8192  # tokens in the pool that all lanes share
    lanes: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    max_pending: Count = 16
    pending_timeout_ms: Count = 600_000
    prefill_chunk: Annotated[int, msgspec.Meta(ge=128, multiple_of=128, le=2**31 - 128)] = 1024
    drain_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 20.0  # longest end after SIGTERM
    log_level: Literal["trace", "debug", "info", "warning", "error", "critical", "off"] = "info"
    log_json: bool = False

    @property
    def pages(self) -> int:
        """Pages of the shared pool."""
        return pages_for(self.kv_capacity)


assert set(LEVELS) == set(EngineConfig.__annotations__["log_level"].__args__)


def encode_config(config: EngineConfig) -> bytes:
    """The JSON text that `read_config` reads, for whoever starts an engine."""
    return msgspec.json.format(msgspec.json.encode(config, enc_hook=str), indent=2)


def read_config(path: Path) -> EngineConfig:
    """The configuration in a JSON file, with every rule checked that needs no device and no artifact.

    Raises:
        ConfigurationError: naming the setting, its value and what would work.
    """
    try:
        config = msgspec.json.decode(path.read_bytes(), type=EngineConfig, dec_hook=_decode_path)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"engine configuration {path}: {error}") from error
    check_config(config)
    return config


def _decode_path(wanted: type, value: object) -> Path:
    if wanted is not Path or not isinstance(value, str) or not value:
        raise TypeError(f"expected a path, got {value!r}")
    return Path(value)


def check_config(config: EngineConfig) -> None:
    """Rules between settings (spec/memory-and-fit.md §2).

    Raises:
        ConfigurationError: naming the settings, their values and what would work.
    """
    if config.kv_dtype != "bf16":
        raise ConfigurationError(f"kv_dtype is {config.kv_dtype!r}; this version keeps the KV cache in bf16: use bf16")
    if config.device not in ("auto", "cpu") and not (config.device.isascii() and config.device.isdigit()):
        raise ConfigurationError(f"device is {config.device!r}; use auto, cpu, or the index of a CUDA device such as 0")
    if config.kv_capacity < config.max_context:
        raise ConfigurationError(
            f"kv_capacity is {config.kv_capacity} tokens, less than max_context {config.max_context}; "
            f"one request must fit: use at least {config.max_context}"
        )
    most = config.lanes * pages_for(config.max_context)
    if not config.lanes <= config.pages <= most:
        raise ConfigurationError(
            f"kv_capacity is {config.kv_capacity} tokens ({config.pages} pages); {config.lanes} lanes of "
            f"max_context {config.max_context} use {config.lanes * PAGE_TOKENS} to {most * PAGE_TOKENS} tokens"
        )
    length = len(bytes(config.socket))
    if length > MAX_SOCKET_PATH:
        raise ConfigurationError(
            f"socket path {config.socket} is {length} bytes; the system allows {MAX_SOCKET_PATH}: use a shorter folder"
        )
