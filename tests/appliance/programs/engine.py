# ruff: noqa: T201
"""A scripted engine: speaks engine/protocol.py, and fails in the way that its script file says."""

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from engine.protocol import (
    VERSION,
    AskStatistics,
    Boot,
    EngineMessage,
    FrameReceiver,
    Hello,
    LaneTokens,
    Limits,
    Statistics,
    Submit,
    Tokens,
    decode_client,
    encode,
    pack_ids,
)

LIMITS = Limits(max_context=4096, kv_capacity=4096, lanes=1, max_pending=4, token_count=1000)
submits: list[int] = []  # by all clients; from the third on the answer is `later`, where the script has one


def serve(connection: socket.socket, script: dict[str, Any], phase: list[Boot]) -> None:
    """One client."""
    receiver = FrameReceiver()
    lock = threading.Lock()

    def send(message: EngineMessage) -> None:
        with lock:
            connection.sendall(encode(message))

    send(Hello(version=VERSION, fingerprint="f" * 32, model="scripted"))
    seen = 0
    while True:
        connection.settimeout(0.02)
        while seen < len(phase):
            if phase[seen].phase == "ready":
                send(LIMITS)
            send(phase[seen])
            seen += 1
        try:
            frames = receiver.receive(connection)
        except TimeoutError:
            continue
        if frames is None:
            return
        for body, _ in frames:
            message = decode_client(body)
            if isinstance(message, AskStatistics) and not script.get("mute"):
                send(Statistics())
            elif isinstance(message, Submit) and not script.get("no_answer"):
                submits.append(message.id)
                ids = script["later"] if "later" in script and len(submits) > 2 else script.get("answer", [1, 2, 3])
                answer = pack_ids(ids)
                send(Tokens(round=1, lanes=(LaneTokens(id=message.id, token_ids=answer, finish="length"),)))


def main() -> int:
    """Boot, then serve until SIGTERM."""
    config = json.loads(Path(sys.argv[2]).read_bytes())
    script_file = Path(os.environ["SCRIPT_FOLDER"]) / "engine.json"
    script = json.loads(script_file.read_bytes()) if script_file.exists() else {}
    print("scripted engine: started with", config["artifact"], flush=True)
    if "exit" in script:
        for line in range(60):
            print(f"scripted engine: last words {line}", flush=True)
        return int(script["exit"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(config["socket"])
    listener.listen(8)
    phase = [Boot(phase="load", detail="weights", done=1, total=2, unit="layers")]

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection, script, phase), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    phase += [Boot(phase="reserve"), Boot(phase="warm-up"), Boot(phase="ready")]
    time.sleep(float(script.get("life", 3600)))
    return int(script.get("then", 0))


if __name__ == "__main__":
    sys.exit(main())
