"""`python -m engine.api` with the text front end of nano: `python -m tests.api.server_process CONFIG`."""

import sys
from pathlib import Path

from engine.api.config import read_config
from engine.api.listen import listen
from engine.api.server import run
from engine.log import configure
from tests.api.nano import load

if __name__ == "__main__":
    config = read_config(Path(sys.argv[1]))
    configure("api", config.log_level)
    run(config, listen(config.host, config.port), load)
