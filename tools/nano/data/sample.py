"""Shows examples: `python -m tools.nano.data.sample [TASK] [--count N] [--seed S] [--tokens]`."""

import argparse
import sys
from pathlib import Path
from random import Random

from tools.nano.data.batches import open_held_out
from tools.nano.data.prepare import CORPUS
from tools.nano.data.tasks import EVALUATED


def main() -> None:
    """Print held-out examples as the model reads them, with what it must produce in green (or in « » when piped)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", choices=list(EVALUATED))
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--tokens", action="store_true", help="mark token borders")
    args = parser.parse_args()
    renderer, prose = open_held_out(args.corpus)
    begin, end = ("\x1b[32m", "\x1b[0m") if sys.stdout.isatty() else ("«", "»")
    for name in [args.task] if args.task else EVALUATED:
        for item in range(args.count):
            example = EVALUATED[name](Random(f"held-out {args.seed} {name} {item}"), prose)
            rendered = renderer.render(example)
            print(f"--- {name} {item}, effort {example.effort}, {len(rendered.token_ids)} tokens", flush=True)
            inside = False
            for token, target in zip(rendered.token_ids.tolist(), rendered.target.tolist(), strict=True):
                sys.stdout.write(begin if target and not inside else end if inside and not target else "")
                inside = target
                text = renderer.frontend.vocabulary[token].decode(errors="replace")
                sys.stdout.write(text + ("|" if args.tokens else ""))
            sys.stdout.write(f"{end if inside else ''}\n")


if __name__ == "__main__":
    main()
