"""The configuration file of the `api` program: one JSON object, written by whoever starts it."""

import os
from pathlib import Path

import msgspec

from engine.exits import ConfigurationError
from engine.network import REFUSE
from engine.options import Options


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request gets when it states nothing (spec/serving.md §6.1–§6.3). None leaves it to the model's preset."""

    default_max_tokens: int | None = None
    max_output_tokens: int | None = None
    no_thinking: bool = False
    reasoning_effort: str | None = None
    default_thinking_budget: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    greedy: bool = False


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the engine that the api only reports. None is unknown."""

    device: str | None = None
    kv_dtype: str | None = None
    kv_capacity_mode: str | None = None
    prefill_chunk: int | None = None
    gdn_state_fp16: bool | None = None


class ApiConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything `python -m engine.api` needs. Times are in seconds unless the name says otherwise.

    Keys never travel in arguments: `api_key_file` holds one key a line; without it, `NINFER_API_KEY` in the environment
    is the key, and without that the server is open. `key_store` is a file of named keys (`engine.key_store`) that may
    come and change later. TLS is on when both of its files are given.
    """

    artifact: str
    socket: str
    state_file: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    api_key_file: str | None = None
    key_store: str | None = None
    open_network: str = REFUSE
    allowed_hosts: tuple[str, ...] = ()
    tls_certificate: str | None = None
    tls_key: str | None = None
    model_id: str | None = None
    chat_template: str | None = None
    max_request_mib: int = 384
    pending_timeout_ms: int = 600_000
    cors: bool = False
    log_stats_interval_ms: int = 5000
    request_log_jsonl: str | None = None
    response_store_max_records: int = 1024
    response_store_max_mib: int = 256
    generation: GenerationDefaults = GenerationDefaults()
    engine: EngineFacts = EngineFacts()
    log_level: str = "info"
    log_json: bool = False
    keep_alive: float = 5.0  # silence after which a stream gets a comment
    heartbeat: float = 15.0  # an engine that says nothing for so long is treated as dead
    stall: float = 300.0  # an engine that has requests and makes no token for so long is treated as dead
    body_pause: float = 30.0  # longest pause while a body arrives
    body_total: float = 600.0  # longest time for a whole body
    idle_connection: float = 75.0  # an idle connection, or one whose headers do not arrive, is closed after this
    max_connections: int = 1024
    drain: float = 8.0  # on SIGTERM, time for running requests to end
    threads: int = 4  # workers that parse, render and tokenise


def from_options(
    options: Options,
    *,
    artifact: Path,
    socket: Path,
    state_file: Path | None = None,
    api_key_file: Path | None = None,
    key_store: Path | None = None,
    tls: tuple[Path, Path] | None = None,
) -> ApiConfig:
    """The configuration that these options ask for. The key in `options` is not copied; see `write_keys`.

    `tls` is the certificate and its key.
    """
    names = GenerationDefaults.__struct_fields__
    return ApiConfig(
        artifact=str(artifact),
        socket=str(socket),
        state_file=None if state_file is None else str(state_file),
        host=options.host,
        port=options.port,
        api_key_file=None if api_key_file is None else str(api_key_file),
        key_store=None if key_store is None else str(key_store),
        open_network=options.open_network,
        allowed_hosts=allowed_hosts(options),
        tls_certificate=None if tls is None else str(tls[0]),
        tls_key=None if tls is None else str(tls[1]),
        model_id=options.model_id,
        chat_template=None if options.chat_template is None else str(options.chat_template),
        max_request_mib=options.max_request_mib,
        pending_timeout_ms=options.pending_timeout_ms,
        cors=options.cors,
        log_stats_interval_ms=options.log_stats_interval_ms,
        request_log_jsonl=None if options.request_log_jsonl is None else str(options.request_log_jsonl.absolute()),
        response_store_max_records=options.response_store_max_records,
        response_store_max_mib=options.response_store_max_mib,
        generation=GenerationDefaults(**{name: getattr(options, name) for name in names}),
        engine=EngineFacts(
            device=options.device,
            kv_dtype=options.kv_dtype,
            kv_capacity_mode="auto" if options.kv_capacity == "auto" else "fixed",
            prefill_chunk=options.prefill_chunk,
            gdn_state_fp16=options.gdn_state_fp16,
        ),
        log_level=options.log_level,
        log_json=options.log_json,
    )


def allowed_hosts(options: Options) -> tuple[str, ...]:
    """The names of `--allowed-hosts`, and of `--host` if that is a name; numbers are always allowed."""
    return (options.host, *(options.allowed_hosts or "").replace(",", " ").split())


def write_keys(path: Path, keys: list[str]) -> None:
    """Write API keys, one a line, readable by the owner alone."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("".join(f"{key}\n" for key in keys))


def read_config(path: Path) -> ApiConfig:
    """The configuration in `path`.

    Raises:
        ConfigurationError: the file cannot be read or holds something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=ApiConfig)
    except OSError as error:
        raise ConfigurationError(f"api configuration {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"api configuration {path}: {error}") from error


def read_keys(config: ApiConfig) -> list[str]:
    """The API keys; empty for an open server.

    Raises:
        ConfigurationError: the key file cannot be read or holds no key.
    """
    if config.api_key_file is None:
        key = os.environ.get("NINFER_API_KEY", "").strip()
        return [key] if key else []
    try:
        lines = Path(config.api_key_file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"API key file {config.api_key_file}: {error}") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ConfigurationError(f"API key file {config.api_key_file} holds no key; put one key on each line")
    return keys
