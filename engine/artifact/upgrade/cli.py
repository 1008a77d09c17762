"""`ninfer-artifact upgrade`: an artifact of version 2 to one of version 3."""

import argparse
import sys
import time
from pathlib import Path

from engine.artifact.terminate import exit_on_terminate
from engine.artifact.unfinished import remove_unfinished, unfinished_note
from engine.artifact.upgrade.run import Progress, upgrade
from engine.exits import ConfigurationError, NInferError

LINE_SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("source", type=Path, metavar="IN", help="artifact of version 2; it is only read")
    parser.add_argument("out", type=Path, metavar="OUT", help="artifact to write; must not exist")
    template = parser.add_mutually_exclusive_group()
    template.add_argument("--template", type=Path, metavar="FILE", help="chat template to install")
    template.add_argument(
        "--keep-template", action="store_true", help="keep the chat template that the file has (the default)"
    )
    parser.add_argument("--clean", action="store_true", help="first remove what a killed run left of this output")


def _tidy(out: Path, *, clean: bool) -> None:
    if clean:
        for left in remove_unfinished(out):
            print(f"removed {left.path} ({left.bytes:,} bytes)", file=sys.stderr)
    elif (note := unfinished_note(out)) is not None:
        print(note, file=sys.stderr)


def run(args: argparse.Namespace) -> int:
    """Upgrade as `args` say; progress goes to standard error. Returns the exit status, 0.

    Raises:
        NInferError: what `upgrade` raises, and a disk error as one that names the output.
    """
    template = None
    if args.template is not None:
        try:
            template = args.template.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"template {args.template} cannot be read: {error.strerror}") from None
    try:
        _tidy(args.out, clean=args.clean)
        with exit_on_terminate():
            outcome = upgrade(args.source, args.out, template, progress=_lines(args.source.name))
    except OSError as error:
        raise NInferError(f"cannot upgrade {args.source} to {args.out}: {error}") from None
    kept = "its own chat template" if template is None else f"the chat template {args.template}"
    print(
        f"{outcome.out}: {outcome.model_id}, {outcome.payload_bytes:,} payload bytes, {outcome.parameters} parameters, "
        f"{kept}; artifact id {outcome.artifact_id}"
    )
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command as a program of its own. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Upgrade a .ninfer artifact from container version 2 to version 3.")
    add_arguments(parser)
    args = parser.parse_args(arguments)
    try:
        return run(args)
    except NInferError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _lines(name: str) -> Progress:
    begun = last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_SECONDS or (done == total and now - begun >= LINE_SECONDS):
            last = now
            rate = done / (now - begun) / 1e6
            print(
                f"upgrade {name}: {done / 1e6:.0f} of {total / 1e6:.0f} MB, {rate:.0f} MB/s",
                file=sys.stderr,
                flush=True,
            )

    return line
