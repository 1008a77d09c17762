"""`ninfer-artifact`: look into an artifact, verify one, make one."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from engine.artifact import Artifact
from engine.artifact.inspect import lines, printable, summary
from engine.artifact.inventory import expected_parameters
from engine.artifact.verify import Pin, verify
from engine.exits import ArtifactError, ExitCode, NInferError

# Subcommands that are modules of their own, imported when they are asked for: some need torch, and one must do
# without anything but the standard library.
MODULES = {
    "convert": ("engine.artifact.convert.cli", "make an artifact from a Hugging Face checkpoint"),
    "upgrade": ("engine.artifact.upgrade.cli", "make an artifact of version 3 from one of version 2"),
    "compare": ("engine.cli.compare", "measure how far one artifact's predictions are from another's"),
    "imatrix": ("engine.cli.imatrix", "collect or import an importance matrix for searching encoders"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and give its exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser(argv).parse_args(argv)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        code = run(options)
        sys.stdout.flush()
        return code
    except NInferError as error:
        print(f"ninfer-artifact: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.CLEAN
    except OSError as error:
        print(f"ninfer-artifact: {error}", file=sys.stderr)
        return ExitCode.RUNTIME
    except KeyboardInterrupt:
        return 130


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ninfer-artifact", description="Look into, verify and make .ninfer files.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_inspect(commands.add_parser("inspect", help="print what an artifact says about itself"))
    _add_verify(commands.add_parser("verify", help="read a whole artifact and check everything in it"))
    for name, (module_name, text) in MODULES.items():
        command = commands.add_parser(name, help=text)
        if argv[:1] == [name]:
            module = import_module(module_name)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, help="the entry file")
    parser.add_argument("--objects", action="store_true", help="list every object")
    parser.add_argument("--bindings", action="store_true", help="list every parameter and what it is made of")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_inspect)


def _inspect(options: argparse.Namespace) -> int:
    with Artifact.open(options.path) as artifact:
        if options.json:
            print(json.dumps(summary(artifact, objects=options.objects, bindings=options.bindings), indent=2))
        else:
            for line in lines(artifact, objects=options.objects, bindings=options.bindings):
                print(line)
    return ExitCode.CLEAN


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, help="the entry file")
    parser.add_argument("--bytes", type=_byte_count, help="the size that the entry file is pinned to")
    parser.add_argument("--sha256", type=_digest, help="the SHA-256 that the entry file is pinned to")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    pin = Pin(options.bytes, options.sha256) if options.bytes is not None or options.sha256 is not None else None
    with Artifact.open(options.path) as artifact:
        trouble: list[str] = []
        inventory = None
        try:
            inventory = expected_parameters(artifact.directory, artifact.text_config)
        except ArtifactError as error:
            trouble.append(str(error).removeprefix(f"{artifact.path}: "))
        with _progress() as show:
            report = verify(artifact, inventory=inventory, pin=pin, progress=show)
        problems = list(dict.fromkeys(trouble + report.problems))
        name = artifact.name
    if options.json:
        result: dict[str, Any] = {
            "path": str(options.path),
            "name": name,
            "good": not problems,
            "problems": problems,
            "notes": report.notes,
        }
        print(json.dumps(result, indent=2))
    else:
        for note in report.notes:
            print(f"  {printable(note)}")
        for problem in problems:
            print(f"  PROBLEM {printable(problem)}")
        verdict = "good" if not problems else f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        print(f"{options.path}: {printable(name)}: {verdict}")
    return ExitCode.BAD_ARTIFACT if problems else ExitCode.CLEAN


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr where that is a terminal; nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what, done, total: None
        return
    columns = (TextColumn("{task.description:<10}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)


def _byte_count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes")
    return int(text)


def _digest(text: str) -> str:
    if not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not 64 hexadecimal digits")
    return text.lower()


if __name__ == "__main__":
    sys.exit(main())
