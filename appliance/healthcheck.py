"""Whether the box answers: exit status 0 when /health says 200, otherwise 1 and one line. Standard library only.

For a container's health check: `python -m appliance.healthcheck`. The address is the one in HOME/state/state.json,
so that a port given on the command line is found too; before there is one, NINFER_PORT or 8080, and NINFER_TLS.
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

SECONDS = 5.0


def address(environ: Mapping[str, str]) -> str:
    """Where the box listens."""
    home = environ.get("NINFER_HOME")
    if home:
        try:
            url = json.loads((Path(home) / "state" / "state.json").read_text(encoding="utf-8")).get("url")
        except (OSError, ValueError, AttributeError):
            url = None
        if isinstance(url, str) and url.startswith(("http://", "https://")):
            return url
    scheme = "http" if (environ.get("NINFER_TLS") or "off") == "off" else "https"
    return f"{scheme}://127.0.0.1:{environ.get('NINFER_PORT') or 8080}"


def check(url: str, seconds: float = SECONDS) -> str | None:
    """None when healthy, else what is wrong."""
    # The certificate names the box as clients see it, and this is the same machine.
    context = ssl._create_unverified_context() if url.startswith("https://") else None
    # No proxy stands between us and ourselves.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=context)] if context else [])
    )
    try:
        with opener.open(f"{url}/health", timeout=seconds) as answer:
            return None if answer.status == 200 else f"{url}/health: {answer.status}"
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(500).decode(errors="replace").strip()
        return f"{url}/health: {error.code} {body}"
    except (OSError, ValueError) as error:
        return f"{url}/health: {error}"


def main() -> int:
    """Entry point; returns the exit status."""
    wrong = check(address(os.environ))
    if wrong is not None:
        print(wrong)
    return 0 if wrong is None else 1


if __name__ == "__main__":
    sys.exit(main())
