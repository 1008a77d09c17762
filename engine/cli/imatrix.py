"""`ninfer-artifact imatrix`: an importance matrix, collected by running a model or imported from llama.cpp."""

import argparse
import json
from pathlib import Path

from rich.console import Console

from engine.artifact import Artifact
from engine.artifact.config import TextConfig
from engine.artifact.convert.configs import read_configs
from engine.artifact.convert.gguf import import_importance
from engine.artifact.convert.importance import ImportanceMatrix
from engine.artifact.convert.progress import show_progress
from engine.artifact.unfinished import refuse_existing
from engine.exits import ConfigurationError
from engine.quality.importance import collect
from engine.quality.subject import Subject
from engine.quality.windows import blocks, read_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("model", type=Path, help="an artifact; with --gguf a checkpoint folder will do")
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--text", type=Path, action="append", metavar="FILE", help="UTF-8 text; may be repeated")
    origin.add_argument("--gguf", type=Path, metavar="FILE", help="an importance matrix of llama.cpp")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="safetensors file; must not exist")
    parser.add_argument("--context", type=int, default=512, metavar="N", help="tokens read at a time (default: 512)")
    parser.add_argument("--tokens", type=int, default=None, metavar="N", help="read at most so many")


def run(args: argparse.Namespace, console: Console | None = None) -> int:
    """Make the file that `args` ask for. Returns the exit status, 0.

    Raises:
        NInferError: a file cannot be used, or the output exists.
    """
    refuse_existing(args.out)
    if args.gguf is not None:
        matrix = import_importance(args.gguf, _config(args.model))
    else:
        matrix = _collect(args, Console(stderr=True) if console is None else console)
    matrix.write(args.out)
    print(f"{args.out}: {len(matrix.vectors)} vectors from {matrix.source}")
    return 0


def _collect(args: argparse.Namespace, console: Console) -> ImportanceMatrix:
    if args.context < 2:
        raise ConfigurationError(f"context is {args.context}; use 2 or more")
    if args.tokens is not None and args.tokens < args.context:
        raise ConfigurationError(f"tokens is {args.tokens}, less than the context of {args.context}")
    subject = Subject(args.model)
    windows: list[list[int]] = []
    for path in args.text:
        windows += blocks(subject.tokenizer.encode(read_text(path)), args.context)
    if args.tokens is not None:
        windows = windows[: args.tokens // args.context]
    total = sum(len(window) for window in windows)
    if not total:
        raise ConfigurationError(f"{', '.join(str(path) for path in args.text)} gives no two tokens to read")
    names = ", ".join(path.name for path in args.text)
    with show_progress(console, f"imatrix {args.model.name}", unit="tokens") as progress:
        return collect(
            subject, windows, f"{subject.name} over {names}, {total} tokens", lambda done: progress(done, total)
        )


def _config(model: Path) -> TextConfig:
    if model.is_dir():
        try:
            record = json.loads((model / "config.json").read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{model / 'config.json'} cannot be read: {error}") from None
        return read_configs(record, ("text",)).text
    with Artifact.open(model) as artifact:
        return artifact.text_config
