"""Makes `etc/nano/nano.ninfer`, the embedded artifact, of random weights: `python -m tools.nano.build`.

The random checkpoint goes through the converter like any other model. The artifact id is fixed and the checkpoint is
named without a folder, so the same sources give the same bytes on every machine; a test holds the committed file to it.
"""

import contextlib
import hashlib
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.artifact.convert.pipeline import Request, convert
from tools.nano import checkpoint
from tools.nano.export import write_pin
from tools.nano.tokenizer import FOLDER

NAME = "nano"
ARTIFACT = FOLDER / "nano.ninfer"
# The id must change whenever the weights or the side files do.
ARTIFACT_ID = hashlib.sha256(f"{NAME} seed {checkpoint.SEED} edition 2".encode()).digest()[:16]


def build(out: Path) -> None:
    """Write the artifact to `out`, replacing what is there in one step."""
    out = out.absolute()
    with TemporaryDirectory(dir=out.parent) as scratch, contextlib.chdir(scratch):
        made = Path(f"{NAME}.ninfer")
        checkpoint.write(Path(NAME))
        convert(
            Request(
                model=Path(NAME),
                recipe="nano",
                out=made,
                components=("text", "mtp"),
                name=NAME,
                artifact_id=ARTIFACT_ID,
            )
        )
        shutil.move(made, out)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        build(Path(sys.argv[1]))
    else:
        build(ARTIFACT)
        write_pin(NAME, ARTIFACT)
