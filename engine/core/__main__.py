"""`python -m engine.core --config FILE.json`: the engine process."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.core.config import read_config
from engine.exits import NInferError
from engine.log import configure, get_logger


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine; the result is its exit status."""
    parser = argparse.ArgumentParser(prog="python -m engine.core", description="Serve one artifact on a Unix socket.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file of an EngineConfig")
    path: Path = parser.parse_args(arguments).config
    configure("engine")
    try:
        config = read_config(path)
    except NInferError as error:
        get_logger(__name__).error("engine_stopped", reason=str(error), status=int(error.exit_code))
        return int(error.exit_code)
    configure("engine", config.log_level, json=config.log_json)
    # Threads that spin at a barrier take the cores from each other as soon as anything else runs on the machine: a
    # step of nano went from 30 to 600 ms at a load of 6. Sleeping costs microseconds. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the plan numbers cards in bus order
    from engine.core.boot import run  # noqa: PLC0415 - a bad configuration is answered without loading torch

    return int(run(config))


if __name__ == "__main__":
    sys.exit(main())
