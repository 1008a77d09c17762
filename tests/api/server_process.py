"""`python -m engine.api` with a text front end from a folder: `python -m tests.api.server_process CONFIG [FOLDER]`.

Without a folder it is that of nano.
"""

import functools
import sys
from pathlib import Path

from engine.api.config import read_config
from engine.api.listen import listen
from engine.api.server import run
from engine.log import configure
from tests.api.nano import FOLDER, load

if __name__ == "__main__":
    config = read_config(Path(sys.argv[1]))
    configure("api", config.log_level)
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER
    run(config, listen(config.host, config.port), functools.partial(load, folder=folder))
