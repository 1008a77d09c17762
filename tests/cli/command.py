"""`python -m tests.cli.command NAME ARGUMENTS`: `ninfer-serve` or `ninfer` with the scripted engine."""

import sys

from engine.cli import generate, serve
from tests.api.nano import load

COMMAND = (sys.executable, "-m", "tests.api.scripted_engine")

if __name__ == "__main__":
    main = {"serve": serve.main, "generate": generate.main}[sys.argv[1]]
    sys.exit(main(sys.argv[2:], command=COMMAND, load=load))
