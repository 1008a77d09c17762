"""The option table: one field an option. Commands, environment names, units and documents are made from it.

A value comes from the first of: command line, `NINFER_*` environment, settings file (TOML), default. `resolve`
returns the values together with where each came from.
"""

import argparse
import dataclasses
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from engine.exits import ConfigurationError
from engine.log import LEVELS
from engine.network import OPEN_NETWORK, REFUSE

Source = Literal["flag", "environment", "file", "default"]
Command = Literal["serve", "generate", "appliance"]
Kind = Literal["integer", "number", "choice", "switch", "text", "path"]

KV_FORMATS = ("bf16", "int8", "fp8", "rk8v4", "rk4v4", "k8v4", "nvfp4")
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What an option's text may be. Calling it parses; the other fields say the same to documents and modules.

    `maximum` None means no bound; `choices` are the texts of a choice, and words allowed beside numbers.
    """

    kind: Kind
    convert: Callable[[str], Any]
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    multiple: int = 1

    def __call__(self, text: str) -> Any:
        """The value.

        Raises:
            ValueError: the text is no such value.
        """
        return self.convert(text)


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One row of the table. `env` is a full name; `commands` says which commands take the flag."""

    flag: str
    env: str
    parse: Value
    default: Any
    help: str
    commands: tuple[Command, ...]
    section: str
    metavar: str = ""
    secret: bool = False


def _integer(minimum: int, maximum: int | None = None, multiple: int = 1, *, words: tuple[str, ...] = ()) -> Value:
    def parse(text: str) -> int | str:
        if text in words:
            return text
        value = int(text)
        if value < minimum or (maximum is not None and value > maximum):
            upper = "" if maximum is None else f" and at most {maximum}"
            raise ValueError(f"must be at least {minimum}{upper}")
        if value % multiple:
            raise ValueError(f"must be a multiple of {multiple}")
        return value

    return Value(kind="integer", convert=parse, minimum=minimum, maximum=maximum, multiple=multiple, choices=words)


def _number(minimum: float, maximum: float) -> Value:
    def parse(text: str) -> float:
        value = float(text)
        if not minimum <= value <= maximum:
            raise ValueError(f"must be between {minimum:g} and {maximum:g}")
        return value

    return Value(kind="number", convert=parse, minimum=minimum, maximum=maximum)


def _choice(*names: str) -> Value:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return text

    return Value(kind="choice", convert=parse, choices=names)


def _parse_switch(text: str) -> bool:
    if text.lower() in ("1", "on", "true", "yes"):
        return True
    if text.lower() in ("0", "off", "false", "no"):
        return False
    raise ValueError("must be on or off")


def _parse_text(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


_switch = Value(kind="switch", convert=_parse_switch)
_text = Value(kind="text", convert=_parse_text)
_path = Value(kind="path", convert=lambda text: Path(_parse_text(text)).expanduser())


ALL: tuple[Command, ...] = ("serve", "generate", "appliance")
SERVERS: tuple[Command, ...] = ("serve", "appliance")
BOX: tuple[Command, ...] = ("appliance",)


def option(
    flag: str,
    parse: Value,
    default: Any,
    help_text: str,
    *,
    section: str,
    env: str = "",
    commands: tuple[Command, ...] = ALL,
    metavar: str = "",
    secret: bool = False,
) -> Any:
    """A dataclass field that is also a row of the table."""
    name = env or "NINFER_" + flag.removeprefix("--").replace("-", "_").upper()
    row = Option(flag, name, parse, default, help_text, commands, section, metavar, secret)
    return dataclasses.field(default=default, metadata={"option": row})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Every setting, typed. Names, defaults and ranges follow `spec/cli.md` §1."""

    # Network and limits
    host: str = option("--host", _text, "127.0.0.1", "address to listen on", section="network", commands=SERVERS)
    port: int = option("--port", _integer(1, 65535), 8080, "TCP port", section="network", commands=SERVERS)
    api_key: str | None = option(
        "--api-key", _text, None, "key that clients must send", section="network", commands=SERVERS, secret=True
    )
    open_network: str = option(
        "--open-network", _choice(*OPEN_NETWORK), REFUSE,
        "what to do when others can reach --host and no key is set", section="network", commands=SERVERS,
    )  # fmt: skip
    allowed_hosts: str | None = option(
        "--allowed-hosts", _text, None,
        "names under which clients may ask besides localhost, the machine's names and addresses, separated by spaces; "
        "* for any", section="network", commands=SERVERS,
    )  # fmt: skip
    tls: str = option(
        "--tls", _choice("off", "self-signed", "files"), "off",
        "HTTPS with a certificate made by the box, or with your own", section="network", commands=SERVERS,
    )  # fmt: skip
    tls_certificate: Path | None = option(
        "--tls-certificate", _path, None, "PEM certificate chain for --tls files; taken again when it changes",
        section="network", commands=SERVERS,
    )  # fmt: skip
    tls_key: Path | None = option(
        "--tls-key", _path, None, "PEM key of --tls-certificate, unencrypted", section="network", commands=SERVERS
    )
    cors: bool = option(
        "--cors", _switch, False, "let web pages of any origin call this server", section="network", commands=SERVERS
    )
    model_id: str | None = option(
        "--model-id", _text, None, "public model name (default: the artifact's)", section="network", commands=SERVERS
    )
    max_request_mib: int = option(
        "--max-request-mib", _integer(1), 384, "largest request body in MiB", section="network", commands=SERVERS
    )
    max_concurrency: int = option(
        "--max-concurrency", _integer(1, 8), 1, "lanes: requests that run together",
        section="network", env="NINFER_CONCURRENCY", commands=SERVERS,
    )  # fmt: skip
    max_pending_requests: int = option(
        "--max-pending-requests", _integer(1), 16, "requests that may wait for a lane",
        section="network", commands=SERVERS,
    )  # fmt: skip
    pending_timeout_ms: int = option(
        "--pending-timeout-ms", _integer(1), 600_000, "longest wait for a lane in milliseconds",
        section="network", commands=SERVERS,
    )  # fmt: skip
    log_stats_interval_ms: int = option(
        "--log-stats-interval-ms", _integer(0), 5000, "milliseconds between throughput lines, 0 for none",
        section="network", commands=SERVERS,
    )  # fmt: skip
    request_log_jsonl: Path | None = option(
        "--request-log-jsonl", _path, None, "file that gets one JSON line for each request, appended",
        section="network", commands=SERVERS,
    )  # fmt: skip
    response_store_max_records: int = option(
        "--response-store-max-records", _integer(1), 1024, "answers of the Responses API kept for later requests",
        section="network", commands=SERVERS,
    )  # fmt: skip
    response_store_max_mib: int = option(
        "--response-store-max-mib", _integer(1), 256, "memory for kept answers in MiB", section="network",
        commands=SERVERS,
    )  # fmt: skip
    log_level: str = option("--log-level", _choice(*LEVELS), "info", "least severe line to print", section="network")
    log_json: bool = option("--log-json", _switch, False, "print log lines as JSON", section="network")

    # Context and memory
    max_context: int = option(
        "--max-context", _integer(1), 8192, "longest request in tokens, prompt and answer",
        section="memory", env="NINFER_CONTEXT",
    )  # fmt: skip
    kv_capacity: int | str | None = option(
        "--kv-capacity", _integer(1, words=("auto",)), None,
        "tokens in the shared KV pool, or auto (default: --max-context)", section="memory",
    )  # fmt: skip
    kv_dtype: str = option("--kv-dtype", _choice(*KV_FORMATS), "bf16", "KV cache format", section="memory")
    prefill_chunk: int = option(
        "--prefill-chunk", _integer(128, multiple=128), 1024, "tokens prefilled between two rounds", section="memory"
    )
    gdn_state_fp16: bool = option("--gdn-state-fp16", _switch, False, "store recurrent state as FP16", section="memory")

    # Execution
    device: str = option("--device", _text, "auto", "auto, cpu, or a CUDA device index", section="execution")
    chat_template: Path | None = option(
        "--chat-template", _path, None, "Jinja file used instead of the artifact's template", section="execution"
    )

    # Generation defaults
    default_max_tokens: int | None = option(
        "--default-max-tokens", _integer(1), None, "answer length when a request states none (default: what is left)",
        section="generation", commands=SERVERS,
    )  # fmt: skip
    max_output_tokens: int | None = option(
        "--max-output-tokens", _integer(1), None, "upper bound of every answer", section="generation", commands=SERVERS
    )
    no_thinking: bool = option("--no-thinking", _switch, False, "do not think by default", section="generation")
    reasoning_effort: str | None = option(
        "--reasoning-effort", _choice(*EFFORTS), None, "default effort of requests that think", section="generation"
    )
    default_thinking_budget: int | None = option(
        "--default-thinking-budget", _integer(1, 2**32 - 1), None,
        "longest thought in tokens when a request states none (default: no bound)",
        section="generation", commands=SERVERS,
    )  # fmt: skip
    temperature: float | None = option(
        "--temperature", _number(0, 2), None, "0 takes the most likely token", section="generation"
    )
    top_p: float | None = option("--top-p", _number(0, 1), None, "nucleus", section="generation")
    top_k: int | None = option("--top-k", _integer(0, 20), None, "candidates, 0 means 20", section="generation")
    min_p: float | None = option("--min-p", _number(0, 1), None, "least share of the best", section="generation")
    presence_penalty: float | None = option(
        "--presence-penalty", _number(-2, 2), None, "subtracted once from generated tokens", section="generation"
    )
    frequency_penalty: float | None = option(
        "--frequency-penalty", _number(-2, 2), None, "subtracted per occurrence", section="generation"
    )
    seed: int | None = option(
        "--seed", _integer(0, 2**64 - 1), None, "seed of requests that send none (default: a fresh one)",
        section="generation",
    )  # fmt: skip
    greedy: bool = option("--greedy", _switch, False, "temperature 0 for every request", section="generation")

    # The box
    model: str = option("--model", _text, "nano", "catalog name or path of an artifact", section="box", commands=BOX)
    profile: str = option("--profile", _text, "tuned", "launch profile", section="box", commands=BOX)
    home: Path = option(
        "--home", _path, Path("~/.local/share/ninfer").expanduser(), "folder that holds models, cache and state",
        section="box", commands=BOX,
    )  # fmt: skip
    model_dir: Path | None = option(
        "--model-dir", _path, None, "folder of artifacts (default: HOME/models)", section="box", commands=BOX
    )
    catalog: Path | None = option(
        "--catalog", _path, None, "pins used instead of etc/models.toml", section="box", commands=BOX
    )
    catalog_policy: str = option(
        "--catalog-policy", _choice("off", "warn", "enforce"), "warn",
        "what to do unless a trusted key signed the catalog", section="box", commands=BOX,
    )  # fmt: skip
    catalog_keys: Path | None = option(
        "--catalog-keys", _path, None, "folder of trusted public keys, *.pub (default: etc/keys)",
        section="box", commands=BOX,
    )  # fmt: skip
    sources: str | None = option(
        "--sources", _text, None,
        "where artifacts are looked for before the hub, separated by spaces: folders, http://BOX:8090",
        section="box", commands=BOX,
    )  # fmt: skip
    offline: bool = option(
        "--offline", _switch, False, "fetch only from folders and boxes on this network", section="box", commands=BOX
    )
    fallback: bool = option(
        "--fallback", _switch, True, "step down lanes and rungs of defaulted sizes until the plan fits",
        section="box", commands=BOX,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Resolved:
    """Options and the source of each, by field name."""

    options: Options
    sources: Mapping[str, Source]

    def explicit(self, name: str) -> bool:
        """Whether a person set this value, so that it must not be changed silently."""
        return self.sources[name] != "default"

    def table(self) -> list[tuple[str, str, Source]]:
        """Rows (flag, value, source) for printing; secrets are redacted."""
        rows: list[tuple[str, str, Source]] = []
        for name, row in rows_of(Options):
            value = getattr(self.options, name)
            shown = "<redacted>" if row.secret and value is not None else "-" if value is None else str(value)
            rows.append((row.flag, shown, self.sources[name]))
        return rows


def rows_of(table: type[Options]) -> list[tuple[str, Option]]:
    """(field name, row) in table order."""
    return [(field.name, field.metadata["option"]) for field in dataclasses.fields(table)]


# Flags of the seed that this version does not have. Each is refused with what to do instead (spec/cli.md §1).
_LATER = "is not in this version; leave it out"
REFUSED: dict[str, str] = {
    "--no-exit-on-engine-failure": _LATER,
    "--device-state-slots": _LATER,
    "--host-context-mib": _LATER,
    "--auto-host-cache": _LATER,
    "--host-cache-reserve-mib": _LATER,
    "--host-cache-max-mib": _LATER,
    "--host-cache-percent": _LATER,
    "--no-prefix-reuse": "is not needed: this version reuses no prefixes",
    "--context-cost-presets": _LATER,
    "--context-store": _LATER,
    "--context-store-s3-endpoint": "is not offered; conversations stay on this box",
    "--context-store-s3-bucket": "is not offered; conversations stay on this box",
    "--devices": "is not in this version; --device selects one card",
    "--stage-layers": "is not in this version; --device selects one card",
    "--spec": "is not in this version; plain decoding is used",
    "--draft-tokens": "is not in this version; plain decoding is used",
    "--lm-head-draft": "is not in this version; plain decoding is used",
    "--lookup-ngram": "is not in this version; plain decoding is used",
    "--prefill-cublas": _LATER,
    "--no-prefill-cublas-projections": _LATER,
    "--no-prefill-a8": _LATER,
    "--mlp-a8-decode": _LATER,
    "--lm-head-q4": _LATER,
    "--lm-head-q6": _LATER,
    "--embedding-q4": _LATER,
    "--embedding-q6": _LATER,
    "--mtp-experts-q4": _LATER,
    "--no-cuda-graph": "is not needed: this version captures no graphs",
    "--graft": "is not offered",
    "--default-graft": "is not offered",
    "--preserve-thinking": "is not in this version; send preserve_thinking with the request",
    "--tolerant-tool-calls": _LATER,
    "--vision": "is not in this version; requests are text only",
    "--vision-residency": "is not in this version; requests are text only",
    "--vision-max-merged": "is not in this version; requests are text only",
    "--media-cache-mib": "is not in this version; requests are text only",
    "--media-live-mib": "is not in this version; requests are text only",
    "--media-preprocess-threads": "is not in this version; requests are text only",
    "--max-prefill-lanes": "was removed; --prefill-chunk bounds the pause between tokens",
    "--prefill-max-skip": "was removed; --prefill-chunk bounds the pause between tokens",
    "--output-reservation-tokens": "was removed; memory is taken as a request grows",
    "--auto-long-anchors": "was removed",
    "--max-long-anchors-per-continuation": "was removed",
    "--max-shared-prefixes": "was removed",
    "--host-state-slots": "was removed; use --host-context-mib once this version has it",
    "--host-kv-mib": "was removed; use --host-context-mib once this version has it",
    "--auto-prefix-grid": "was removed",
    "--slot-save-path": "was removed",
    "--auto-save-evicted": "was removed",
    "--mtp-draft-tokens": "was removed",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message}; {self.prog} --help lists the options")


def parser(command: Command, prog: str, description: str) -> argparse.ArgumentParser:
    """An argument parser with one argument for each option that `command` takes.

    Values are left as text: `resolve` parses flags, environment and file alike. Errors are `ConfigurationError`.
    """
    made = _Parser(prog=prog, description=description, allow_abbrev=False)
    groups: dict[str, Any] = {}
    for name, row in rows_of(Options):
        if command not in row.commands:
            continue
        group = groups.setdefault(row.section, made.add_argument_group(row.section))
        default = "" if row.default is None else f" [{row.default}]"
        text = f"{row.help}{default} ({row.env})".replace("%", "%%")
        if row.parse is _switch:
            flag, value = (f"--no-{row.flag.removeprefix('--')}", "off") if row.default else (row.flag, "on")
            group.add_argument(flag, dest=name, action="store_const", const=value, help=text)
        else:
            group.add_argument(row.flag, dest=name, help=text, metavar=row.metavar or name.upper())
    return made


def refuse_unknown(arguments: Sequence[str]) -> None:
    """Explain the first seed flag in `arguments` that this version does not have.

    Raises:
        ConfigurationError: naming the flag and what to do instead.
    """
    for argument in arguments:
        flag = argument.split("=", 1)[0]
        if flag in REFUSED:
            raise ConfigurationError(f"{flag} {REFUSED[flag]}")


def resolve(
    flags: Mapping[str, str | None], environ: Mapping[str, str] | None = None, file: Path | None = None
) -> Resolved:
    """Merge flags (field name → text), environment, TOML file (keys are flag names without dashes) and defaults.

    Raises:
        ConfigurationError: a value does not parse, or the file has an unknown key; the message names both.
    """
    environ = os.environ if environ is None else environ
    table = dict(rows_of(Options))
    settings = _read_file(file) if file is not None else {}
    known = {row.flag.removeprefix("--"): name for name, row in table.items()}
    for key in settings:
        if key not in known:
            raise ConfigurationError(f"{file}: unknown setting {key!r}; known: {', '.join(sorted(known))}")
    by_name = {known[key]: value for key, value in settings.items()}
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for name, row in table.items():
        candidates: tuple[tuple[Source, str | None, str], ...] = (
            ("flag", flags.get(name), row.flag),
            ("environment", environ.get(row.env) or None, row.env),
            ("file", by_name.get(name), f"{file}: {row.flag.removeprefix('--')}"),
        )
        values[name], sources[name] = row.default, "default"
        for source, text, origin in candidates:
            if text is not None:
                values[name], sources[name] = _parse(row, text, origin), source
                break
    return Resolved(Options(**values), sources)


def _parse(row: Option, text: str, origin: str) -> Any:
    try:
        return row.parse(text)
    except ValueError as error:
        raise ConfigurationError(f"{origin}: {text!r} {_reason(error, text)}") from error


def _reason(error: ValueError, text: str) -> str:
    reason = str(error)
    return reason if reason.startswith("must") else f"is not a number (got {text!r})"


def _read_file(file: Path) -> dict[str, str]:
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"settings file {file}: {error}") from error
    return {key: ("on" if value else "off") if isinstance(value, bool) else str(value) for key, value in raw.items()}
