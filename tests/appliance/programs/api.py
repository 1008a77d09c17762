"""A scripted api: /health from state.json, and nothing else."""

import json
import os
import signal
import ssl
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

CONFIG = json.loads(Path(sys.argv[2]).read_bytes()) if len(sys.argv) > 2 else {}


class Handler(BaseHTTPRequestHandler):
    """200 when ready."""

    def do_GET(self) -> None:
        state = json.loads(Path(CONFIG["state_file"]).read_bytes())
        self.send_response(200 if state["phase"] == "ready" else 503)
        self.end_headers()
        self.wfile.write(json.dumps({"pid": os.getpid(), "phase": state["phase"], "detail": state["detail"]}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


class Server(HTTPServer):
    """No name look-up at bind."""

    def server_bind(self) -> None:
        self.socket.setsockopt(1, 2, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", self.socket.getsockname()[1]


if __name__ == "__main__":
    script_file = Path(os.environ["SCRIPT_FOLDER"]) / "api.json"
    if script_file.exists():
        sys.exit(int(json.loads(script_file.read_bytes())["exit"]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Server((CONFIG["host"], CONFIG["port"]), Handler) as server:
        if CONFIG["tls_certificate"] is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CONFIG["tls_certificate"], CONFIG["tls_key"])
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.serve_forever()
