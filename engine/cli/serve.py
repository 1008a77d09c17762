"""`ninfer-serve MODEL [flags]`: API and engine for people who bring their own supervision (spec/cli.md §1)."""

import asyncio
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.api.config import ApiConfig, from_options, write_keys
from engine.api.listen import listen
from engine.api.model import Load, load_model
from engine.api.server import serve
from engine.api.service import Service
from engine.cli.child import ENGINE, engine_config, exit_code, run_folder, start_engine, stop_engine
from engine.core.config import EngineConfig, check_config
from engine.exits import ConfigurationError, ExitCode, NInferError, seed_status
from engine.log import configure, get_logger
from engine.network import check_exposure
from engine.options import Options, parser, refuse_unknown, resolve
from engine.tls import given_files
from engine.version import version

log = get_logger(__name__)

PROGRAM = "ninfer-serve"
LINGER = 5.0  # seconds of 503 after the engine gives up, so that answers get out


def main(
    arguments: Sequence[str] | None = None, *, command: Sequence[str] = ENGINE, load: Load = load_model
) -> int:  # fmt: skip
    """Serve until a signal comes or the engine gives up; the exit status is the seed's: 0, 1 or 3."""
    arguments = sys.argv[1:] if arguments is None else arguments
    flags = parser("serve", PROGRAM, "Serve one artifact over HTTP.")
    flags.add_argument("artifact", type=Path, metavar="MODEL", help="path of an artifact")
    flags.add_argument("--version", action="version", version=version(), help="print the version and exit")
    try:
        refuse_unknown(arguments)
        values = vars(flags.parse_args(arguments))
        artifact: Path = values.pop("artifact")
        resolved = resolve(values)
        options = resolved.options
        configure(PROGRAM, options.log_level, json=options.log_json)
        with run_folder() as folder:
            engine = engine_config(options, artifact, folder / "engine.sock")
            check_config(engine)
            check_exposure(options.host, options.open_network, key=options.api_key is not None)
            api = _api_config(options, artifact, folder)
            listener = listen(options.host, options.port)
            return seed_status(asyncio.run(_run(api, engine, listener, folder, command=command, load=load)))
    except NInferError as error:
        print(f"{PROGRAM}: {error}\n{flags.format_usage()}", file=sys.stderr, end="")
        return seed_status(error.exit_code)


def _api_config(options: Options, artifact: Path, folder: Path) -> ApiConfig:
    keys = None
    if options.api_key is not None:
        keys = folder / "keys"
        write_keys(keys, [options.api_key])
    tls = _tls_files(options)
    return from_options(options, artifact=artifact, socket=folder / "engine.sock", api_key_file=keys, tls=tls)


def _tls_files(options: Options) -> tuple[Path, Path] | None:
    if options.tls == "self-signed":
        raise ConfigurationError(
            "--tls self-signed needs a place where the certificate stays, and this program has none; "
            "ninfer-appliance up has one, and --tls files takes a certificate of yours"
        )
    return given_files(options)


async def _run(
    api: ApiConfig,
    config: EngineConfig,
    listener: socket.socket,
    folder: Path,
    *,
    command: Sequence[str],
    load: Load,
) -> int:
    """Serve; return the engine's exit code if it ended by itself, else 0."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    service = Service(api, load)
    engine = await start_engine(config, folder, command)
    serving = asyncio.create_task(serve(service, listener, stop))
    ended = asyncio.create_task(engine.wait())
    try:
        await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
            return ExitCode.CLEAN
        # An engine that ends while we serve has failed, whatever it says.
        code = exit_code(await ended) or ExitCode.RUNTIME
        if not stop.is_set():
            log.critical("engine_ended", code=int(code), returncode=engine.returncode)
            if service.ready.is_set():
                await asyncio.wait({asyncio.create_task(stop.wait())}, timeout=LINGER)
            stop.set()
            await serving
            return code
        await serving
        return ExitCode.CLEAN
    finally:
        ended.cancel()
        await stop_engine(engine)


if __name__ == "__main__":
    sys.exit(main())
