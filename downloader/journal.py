"""What of a staged file has arrived: one appended line a fact, so that SIGKILL or a power cut loses the last at most.

The first line says which bytes the file is to become. Every further line says that the first `length` bytes of a
chunk are on disk and have a SHA-256; the last line about a chunk counts. A line is written only after its bytes are
durable. A line that was cut off does not parse and is passed over: its bytes are fetched again.
"""

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from downloader.catalog import Pin


@dataclass(frozen=True)
class Arrival:
    """The first `length` bytes of `chunk` arrived and had this digest."""

    chunk: int
    length: int
    sha256: str
    source: str = ""  # where (the end of) it came from
    seam: bool = False  # put together from more than one answer


class JournalError(Exception):
    """The journal does not speak of these bytes; the message says why."""


@dataclass(frozen=True)
class Journal:
    """The journal at `path` of a file that is to become `pin`."""

    path: Path
    pin: Pin

    def read(self) -> dict[int, Arrival]:
        """What has arrived, by chunk.

        Raises:
            JournalError: there is no journal, or it speaks of other bytes or other chunks.
        """
        try:
            head, *lines = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise JournalError(f"its journal cannot be read ({error.strerror})") from error
        if _parse(head) != self._head():
            raise JournalError("its journal is of another pin or of another version of this program")
        arrivals: dict[int, Arrival] = {}
        for line in lines:
            with contextlib.suppress(TypeError, ValueError):
                arrival = Arrival(**_parse(line))
                if 0 <= arrival.chunk < self.pin.layout.count and 0 < arrival.length <= self.pin.layout.size(
                    arrival.chunk
                ):
                    arrivals[arrival.chunk] = arrival
        return arrivals

    def start(self, arrivals: Iterable[Arrival] = ()) -> None:
        """Begin anew, with these facts.

        Raises:
            OSError: the folder cannot be written.
        """
        temporary = self.path.with_name(self.path.name + ".new")
        lines = [json.dumps(self._head()), *(json.dumps(asdict(arrival)) for arrival in arrivals)]
        with temporary.open("w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)

    def append(self, arrival: Arrival) -> None:
        """Add a fact, durably.

        Raises:
            OSError: the disk is full or failed.
        """
        # It begins with a line break of its own, so that a line that was cut off before cannot swallow it.
        with self.path.open("ab", buffering=0) as file:
            file.write(b"\n" + json.dumps(asdict(arrival)).encode() + b"\n")
            os.fdatasync(file.fileno())

    def _head(self) -> dict[str, object]:
        return {"journal": 2, "sha256": self.pin.sha256, "bytes": self.pin.bytes, "chunk_bytes": self.pin.chunk_bytes}


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
