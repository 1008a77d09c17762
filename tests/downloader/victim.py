"""The command as a process that a test may kill. A fork server loads the modules once, so that ten kills are quick."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from downloader.cli import main

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.downloader.victim"])


def start(arguments: Sequence[str], output: Path) -> ForkServerProcess:
    """`download-model ARGUMENTS` in a process; what it prints goes to the file `output`."""
    process = _context.Process(target=_run, args=(list(arguments), str(output)), daemon=True)
    process.start()
    return process


def _run(arguments: list[str], output: str) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.exit(main(arguments))
