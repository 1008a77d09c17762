"""One answer of one source on its way into the staged file; it runs in a thread of its own."""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from downloader.errors import SurplusError, TransferError
from downloader.journal import Arrival
from downloader.sources import Source
from downloader.staging import Staging


@dataclass(eq=False)
class Flight:
    """What is fetched, and how far it is. Its thread writes `chunk`, `position` and `received`; the other fields are
    the deciding thread's.

    `chunks` is one chunk, or for a source without ranges all that are wanted of its whole answer.
    """

    source: Source
    chunks: Sequence[int]
    whole: bool
    prefix: Arrival | None  # of the one chunk: what is on disk already
    failures_before: int  # of the source, when this began
    chunk: int = -1
    position: int = 0  # bytes of `chunk` on disk
    received: int = 0  # bytes that came from the source
    useful: bool = False  # some of it is in the journal
    cancelled: str = ""  # why it should end
    started: float = 0.0
    marked_bytes: int = 0  # of `received`, when its rate was last looked at
    marked_time: float = 0.0
    rate: float | None = None  # bytes a second, in the last window
    landed: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Begun:
    """The first byte came."""

    flight: Flight


@dataclass(frozen=True)
class Reached:
    """A part of a chunk, or all of it, is durable."""

    flight: Flight
    arrival: Arrival


@dataclass(frozen=True)
class Ended:
    """The thread is done. `error` None: everything that was asked for has come."""

    flight: Flight
    error: Exception | None


Event = Begun | Reached | Ended
Post = Callable[[Event], None]


def fly(flight: Flight, staged: Staging, post: Post, checkpoint_seconds: float) -> None:
    """Fetch what `flight` asks for into the staged file; tells by `post` how it goes, and raises nothing."""
    try:
        with staged.path.open("r+b", buffering=0) as file:
            writer = _Writer(flight, file.fileno(), staged, post, checkpoint_seconds)
            if flight.whole:
                writer.whole()
            else:
                writer.range(flight.chunks[0])
    except Exception as error:
        post(Ended(flight, error))
    else:
        post(Ended(flight, None))


class _Writer:
    def __init__(self, flight: Flight, file: int, staged: Staging, post: Post, checkpoint_seconds: float) -> None:
        self.flight, self.file, self.post = flight, file, post
        self.layout, self.disk = staged.layout, staged.disk
        self.checkpoint_seconds = checkpoint_seconds
        self.hasher = hashlib.sha256()
        self.seam = False

    def range(self, chunk: int) -> None:
        """One chunk, from where its prefix ends. What came is reported even when the source fails."""
        self._begin(chunk)
        self._take_prefix()
        begin, end = self.layout.range(chunk)
        due = time.monotonic() + self.checkpoint_seconds
        try:
            with self.flight.source.read(begin + self.flight.position, end) as blocks:
                for block in blocks:
                    self._write(memoryview(block))
                    if time.monotonic() >= due and self.flight.position < self.layout.size(chunk):
                        self._reached()
                        due = time.monotonic() + self.checkpoint_seconds
        except SurplusError:
            raise  # whatever this was, it was not the range
        except TransferError:
            if self.flight.received and self.flight.position < self.layout.size(chunk):
                self._reached()
            raise
        if self.flight.position < self.layout.size(chunk):
            self._reached()
            raise TransferError(
                f"{self.flight.source.name}: the transfer ended {end - begin - self.flight.position} bytes early"
            )
        self._reached()

    def whole(self) -> None:
        """Every chunk of `flight.chunks` out of an answer that starts at byte 0."""
        wanted = set(self.flight.chunks)
        self._begin(0)
        seen = 0  # bytes of the present chunk
        with self.flight.source.read_whole() as blocks:
            for block in blocks:
                view = memoryview(block)
                while view:
                    size = self.layout.size(self.flight.chunk)
                    piece, view = view[: size - seen], view[size - seen :]
                    seen += len(piece)
                    if self.flight.chunk in wanted:
                        self._write(piece)
                    elif self.flight.cancelled:
                        raise TransferError(self.flight.cancelled)
                    if seen == size:
                        if self.flight.chunk in wanted:
                            self._reached()
                        seen = 0
                        self._begin(self.flight.chunk + 1)
        if self.flight.chunk < self.layout.count:
            raise TransferError(f"{self.flight.source.name}: the transfer ended early")

    def _begin(self, chunk: int) -> None:
        self.flight.position = 0
        self.flight.chunk = chunk
        self.hasher = hashlib.sha256()

    def _take_prefix(self) -> None:
        prefix = self.flight.prefix
        if prefix is None:
            return
        begin, _ = self.layout.range(prefix.chunk)
        self.hasher.update(os.pread(self.file, prefix.length, begin))
        if self.hasher.hexdigest() == prefix.sha256:
            self.flight.position, self.seam = prefix.length, True
        else:
            self.hasher = hashlib.sha256()

    def _write(self, view: memoryview) -> None:
        if self.flight.cancelled:
            raise TransferError(self.flight.cancelled)
        begin, _ = self.layout.range(self.flight.chunk)
        self.hasher.update(view)
        while view:
            written = self.disk.write(self.file, view, begin + self.flight.position)
            self.flight.position += written
            if not self.flight.received:
                self.post(Begun(self.flight))
            self.flight.received += written
            view = view[written:]

    def _reached(self) -> None:
        self.disk.sync(self.file)  # the journal may never claim what a power cut can still take back
        arrival = Arrival(
            self.flight.chunk, self.flight.position, self.hasher.hexdigest(), self.flight.source.name, self.seam
        )
        self.post(Reached(self.flight, arrival))
