"""`python -m tools.calculator` writes docs/fit.html; `--check` writes nothing and exits 1 when it is out of date."""

import argparse
import sys

from tools.calculator import PAGE, page


def main() -> int:
    """Write or check the page; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.calculator", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    made = page()
    if parser.parse_args().check:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == made
        if not current:
            print(f"{PAGE} is out of date: python -m tools.calculator", file=sys.stderr)
        return 0 if current else 1
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
