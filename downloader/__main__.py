"""`python -m downloader` is `download-model`."""

import sys

from downloader.cli import main

sys.exit(main())
