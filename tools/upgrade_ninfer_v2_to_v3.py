"""`upgrade_ninfer_v2_to_v3.py IN OUT`: the upgrade under the name it has always had; needs nothing but Python."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.artifact.upgrade.cli import main

if __name__ == "__main__":
    sys.exit(main())
