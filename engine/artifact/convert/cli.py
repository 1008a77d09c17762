"""`ninfer-artifact convert`: a Hugging Face checkpoint folder to one artifact."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from engine.artifact.convert.encode import usable_processors
from engine.artifact.convert.pipeline import ProposalRequest, Request, convert
from engine.artifact.convert.progress import show_progress
from engine.artifact.convert.recipes import RECIPES
from engine.artifact.convert.report import summary
from engine.artifact.terminate import exit_on_terminate
from engine.artifact.unfinished import remove_unfinished, unfinished_note
from engine.artifact.writer import FILE_LIMIT
from engine.exits import ConfigurationError, NInferError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    recipes = "; ".join(f"{recipe.name}: {recipe.summary}" for recipe in RECIPES.values())
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="checkpoint folder")
    parser.add_argument("--recipe", required=True, metavar="NAME", help=recipes)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="artifact to write; must not exist")
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="another input of the recipe, such as imatrix=FILE; may be repeated",
    )
    parser.add_argument("--components", default="text", metavar="LIST", help="text[,mtp][,vision] (default: text)")
    parser.add_argument("--proposal", action="store_true", help="add a proposal head for drafting")
    parser.add_argument(
        "--proposal-rows", type=int, default=None, metavar="N", help="tokens of the proposal head (default: 131072)"
    )
    parser.add_argument("--ranking", type=Path, metavar="FILE", help="how often each token is wanted, 64-bit counts")
    parser.add_argument("--proposal-ids", type=Path, metavar="FROM", help="take the tokens of this artifact instead")
    parser.add_argument("--name", default=None, help="public name stored in the artifact")
    parser.add_argument("--device", default="cpu", help="where to encode: cpu")
    parser.add_argument("--rows-per-chunk", type=int, default=512, metavar="N", help="rows in memory (default: 512)")
    parser.add_argument(
        "--threads", type=int, default=usable_processors(), metavar="N", help="chunks encoded at a time (default: all)"
    )
    parser.add_argument("--clean", action="store_true", help="first remove what a killed run left of this output")
    parser.add_argument(
        "--max-file-bytes", type=int, default=FILE_LIMIT, metavar="N", help=f"largest file (default: {FILE_LIMIT})"
    )
    parser.add_argument(
        "--resource", action="append", default=[], metavar="ROLE=PATH", help="another file for a role; may be repeated"
    )


def run(args: argparse.Namespace, console: Console | None = None) -> int:
    """Convert as `args` say; progress goes to `console` (default: standard error). Returns the exit status, 0.

    Raises:
        NInferError: what `convert` raises, and a disk error as one that names the output.
    """
    request = parse(args)
    console = Console(stderr=True) if console is None else console
    try:
        if args.clean:
            for left in remove_unfinished(request.out):
                console.print(f"removed {left.path}", highlight=False, markup=False, soft_wrap=True)
        elif (note := unfinished_note(request.out)) is not None:
            console.print(note, highlight=False, markup=False, soft_wrap=True)
        with exit_on_terminate(), show_progress(console, f"convert {request.model.name}") as progress:
            report = convert(request, progress)
    except OSError as error:
        raise NInferError(f"cannot convert {request.model} to {request.out}: {error}") from None
    print(summary(report))
    return 0


def parse(args: argparse.Namespace) -> Request:
    """The request that `args` make.

    Raises:
        ConfigurationError: a device this version does not convert on, a component named twice, or a malformed pair.
    """
    if args.device != "cpu":
        raise ConfigurationError(f"device {args.device!r} cannot convert in this version; use cpu")
    components = tuple(args.components.split(","))
    if len(set(components)) != len(components):
        raise ConfigurationError(f"components {args.components!r} names one twice")
    if args.max_file_bytes <= 0:
        raise ConfigurationError(f"max file bytes is {args.max_file_bytes}; use 1 or more")
    if args.threads < 1:
        raise ConfigurationError(f"threads is {args.threads}; use 1 or more")
    return Request(
        model=args.model,
        recipe=args.recipe,
        out=args.out,
        components=components,
        name=args.name,
        rows_per_chunk=args.rows_per_chunk,
        max_file_bytes=args.max_file_bytes,
        resources=_paths("resource", "ROLE", args.resource),
        sources=_paths("source", "NAME", args.source),
        threads=args.threads,
        proposal=_proposal(args),
    )


def _proposal(args: argparse.Namespace) -> ProposalRequest | None:
    if not args.proposal:
        for flag in ("proposal_rows", "ranking", "proposal_ids"):
            if getattr(args, flag) is not None:
                raise ConfigurationError(f"--{flag.replace('_', '-')} goes with --proposal")
        return None
    if args.proposal_ids is not None and args.proposal_rows is not None:
        raise ConfigurationError("--proposal-rows does not go with --proposal-ids, whose artifact gives the number")
    rows = 131072 if args.proposal_rows is None else args.proposal_rows
    return ProposalRequest(rows=rows, ranking=args.ranking, ids_from=args.proposal_ids)


def _paths(what: str, key: str, pairs: Sequence[str]) -> dict[str, Path]:
    paths: dict[str, Path] = {}
    for pair in pairs:
        name, separator, path = pair.partition("=")
        if not (name and separator and path) or name in paths:
            raise ConfigurationError(f"{what} {pair!r} is not {key}=PATH with a {key.lower()} of its own")
        paths[name] = Path(path)
    return paths
