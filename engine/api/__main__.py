"""`python -m engine.api --config FILE.json`: the HTTP side of the appliance."""

import argparse
import sys
from pathlib import Path

from engine.api.config import read_config, read_keys
from engine.api.listen import listen
from engine.exits import ExitCode, NInferError
from engine.log import configure
from engine.network import check_exposure


def main() -> int:
    """Serve until SIGTERM; the exit status is of `engine.exits`."""
    parser = argparse.ArgumentParser(prog="python -m engine.api", description="Serve HTTP for one engine.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file: engine.api.config.ApiConfig")
    arguments = parser.parse_args()
    try:
        config = read_config(arguments.config)
        configure("api", config.log_level, json=config.log_json)
        stored = config.key_store is not None and Path(config.key_store).exists()
        check_exposure(config.host, config.open_network, key=stored or bool(read_keys(config)))
        listener = listen(config.host, config.port)
        # Imported with the port already bound: a client that comes now waits a moment instead of being refused.
        from engine.api.server import run  # noqa: PLC0415

        run(config, listener)
    except NInferError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return ExitCode.CLEAN


if __name__ == "__main__":
    sys.exit(main())
