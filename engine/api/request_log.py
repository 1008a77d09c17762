"""The request log: one JSON object a line, appended and flushed (spec/serving.md §13)."""

import os
import queue
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from engine.exits import ConfigurationError
from engine.log import get_logger

log = get_logger(__name__)

TYPE = "ninfer_serve_request_log"
VERSION = 26
WAITING = 10_000  # lines

_encode = msgspec.json.Encoder().encode


class RequestLog:
    """Writes from a thread of its own, so that a slow disk holds up no request. Without a path it does nothing."""

    def __init__(self, path: Path | None, *, not_at: Path | None = None) -> None:
        """Open `path` for appending; `not_at` is a file that must not be written to.

        Raises:
            ConfigurationError: it cannot be written, or is `not_at`.
        """
        self._instance = f"serve-{os.getpid()}-{time.time_ns() // 1000}"
        self._lines: queue.Queue[bytes | None] = queue.Queue(WAITING)
        self._lost = 0
        self._thread: threading.Thread | None = None
        if path is None:
            return
        try:
            if not_at is not None and path.exists() and not_at.exists() and path.samefile(not_at):
                raise ConfigurationError(f"--request-log-jsonl: {path} is the artifact; name another file")
            # Not a context manager: the file lives as long as the thread that writes it.
            file = path.open("ab")
        except OSError as error:
            raise ConfigurationError(f"--request-log-jsonl: cannot write {path}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._run, args=(file,), name="request-log", daemon=True)
        self._thread.start()

    @property
    def enabled(self) -> bool:
        """Whether records are kept."""
        return self._thread is not None

    def write(self, event: str, fields: dict[str, Any]) -> None:
        """Queue one record. A record that finds the queue full is lost, and the loss is logged."""
        if self._thread is None:
            return
        head = {
            "artifact_type": TYPE,
            "schema_version": VERSION,
            "event": event,
            "timestamp_unix_ms": time.time_ns() // 1_000_000,
            "server_instance_id": self._instance,
        }
        try:
            self._lines.put_nowait(_encode(head | fields) + b"\n")
        except queue.Full:
            self._lost += 1
            if self._lost in (1, 1000, 1_000_000):
                log.error("request_log_lines_lost", lost=self._lost)

    def close(self) -> None:
        """Write what is queued, and stop."""
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(timeout=5.0)
            self._thread = None

    def _run(self, file: BinaryIO) -> None:
        failed = False
        with file:
            while (line := self._lines.get()) is not None:
                try:
                    file.write(line)
                    file.flush()
                    failed = False
                except OSError as error:
                    if not failed:
                        log.error("request_log_not_written", reason=str(error))
                    failed = True
