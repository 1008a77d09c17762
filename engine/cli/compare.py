"""`ninfer-artifact compare`: how far one artifact's predictions are from another's."""

import argparse
import json
from pathlib import Path

from rich.console import Console

from engine.artifact.convert.progress import show_progress
from engine.exits import ConfigurationError
from engine.quality.comparison import compare
from engine.quality.corpus import read_corpus, read_single
from engine.quality.subject import Subject
from engine.quality.windows import blocks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("first", type=Path, metavar="A", help="the artifact to be true to")
    parser.add_argument("second", type=Path, metavar="B", help="the artifact that may differ")
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--text", type=Path, metavar="FILE", help="UTF-8 text")
    origin.add_argument("--corpus", type=Path, metavar="MANIFEST", help="a corpus, such as etc/corpus/held-out.json")
    parser.add_argument("--context", type=int, default=512, metavar="N", help="tokens read at a time (default: 512)")
    parser.add_argument("--tokens", type=int, default=None, metavar="N", help="read at most so many of each stream")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace, console: Console | None = None) -> int:
    """Compare as `args` say and print the figures. Returns the exit status, 0.

    Raises:
        NInferError: a file cannot be used.
    """
    if args.context < 2:
        raise ConfigurationError(f"context is {args.context}; use 2 or more")
    corpus = read_corpus(args.corpus) if args.corpus is not None else read_single(args.text)
    first, second = Subject(args.first), Subject(args.second)
    windows: list[list[int]] = []
    for stream in corpus.streams:
        windows += blocks(first.tokenizer.encode(stream.text)[: args.tokens], args.context)
    total = sum(len(window) for window in windows)
    console = Console(stderr=True) if console is None else console
    with show_progress(console, f"compare {args.second.name}", unit="tokens") as progress:
        figures = compare(first, second, windows, lambda done: progress(done, total)).summary()
    if args.json:
        names = {"first": str(args.first), "second": str(args.second), "corpus": corpus.name, "context": args.context}
        print(json.dumps(names | figures, indent=2))
        return 0
    print(f"{args.second} against {args.first}, {corpus.name}, context {args.context}")
    for name, value in figures.items():
        print(f"  {name:<16} {value:>12,}" if name == "positions" else f"  {name:<16} {value:>12.6f}")
    return 0
