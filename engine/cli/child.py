"""The engine as a child process, for commands that bring their own supervision."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from engine.core.config import EngineConfig
from engine.exits import ConfigurationError, ExitCode
from engine.options import Options

ENGINE = (sys.executable, "-m", "engine.core")
LONGEST_STOP = 25.0  # seconds; the engine itself needs 20 at most

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    """A short-lived folder of our own for the socket and the configuration files, with a path short enough for one."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = runtime if runtime and len(runtime) < 60 and os.access(runtime, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ninfer-", dir=base) as folder:
        yield Path(folder)


def engine_config(options: Options, artifact: Path, socket: Path) -> EngineConfig:
    """What the engine is started with.

    Raises:
        ConfigurationError: a size is left to a planner that is not here, or the artifact is not there.
    """
    if options.kv_capacity == "auto":
        raise ConfigurationError(
            "--kv-capacity auto is worked out by ninfer-appliance; give tokens here, from "
            f"{options.max_context} (one request) to {options.max_context * options.max_concurrency} (every lane)"
        )
    if not artifact.is_file():
        raise ConfigurationError(f"{artifact} is not a file; the first argument is the path of an artifact")
    settings = {
        "artifact": str(artifact),
        "socket": str(socket),
        "device": options.device,
        "kv_dtype": options.kv_dtype,
        "gdn_state_fp16": options.gdn_state_fp16,
        "max_context": options.max_context,
        "kv_capacity": options.kv_capacity or options.max_context,
        "lanes": options.max_concurrency,
        "max_pending": options.max_pending_requests,
        "pending_timeout_ms": options.pending_timeout_ms,
        "prefill_chunk": options.prefill_chunk,
        "log_level": options.log_level,
        "log_json": options.log_json,
    }
    try:
        return msgspec.convert(settings, EngineConfig, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        raise ConfigurationError(str(error)) from error


async def start_engine(
    config: EngineConfig, folder: Path, command: Sequence[str] = ENGINE
) -> asyncio.subprocess.Process:  # fmt: skip
    """Start the engine. It is told to stop when we die, and a Ctrl-C on our terminal does not reach it before us."""
    file = folder / "engine.json"
    file.write_bytes(msgspec.json.encode(config, enc_hook=str))
    environment = {name: value for name, value in os.environ.items() if name != "NINFER_API_KEY"}
    return await asyncio.create_subprocess_exec(
        *command,
        "--config",
        str(file),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )


async def stop_engine(engine: asyncio.subprocess.Process) -> None:
    """Ask the engine to end, and make it end if it does not."""
    for number, patience in ((signal.SIGTERM, LONGEST_STOP), (signal.SIGKILL, 5.0)):
        if engine.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            engine.send_signal(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await engine.wait()


def exit_code(returncode: int) -> int:
    """The engine's code for a return code; a signal is a failure at run time."""
    return ExitCode.RUNTIME if returncode < 0 else returncode


_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
