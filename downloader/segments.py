"""Chunks fetched in parallel from several sources. One thread decides and writes the journal; flights only fetch.

Sources are used in their order; while there are several, each gets at most half of the segments, and the next one
what is left over. A chunk that a source failed to give goes to another. A source that fails without a byte rests,
longer each time, and is then tried with a single segment. One that gives wrong bytes, or is slow again and again,
is demoted: it is used when all others are lost.
"""

import contextlib
import queue
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import structlog

from downloader.catalog import Pin
from downloader.chunks import Progress
from downloader.errors import CatalogError, DownloadError, RangesRefusedError, SourceError, TransferError
from downloader.flight import Begun, Ended, Event, Flight, Reached, fly
from downloader.journal import Arrival
from downloader.sources import Source
from downloader.staging import Staging

log = structlog.get_logger(__name__)
TICK_SECONDS = 0.2
WRONG_DIGESTS = 3  # of one chunk, before giving up
PATIENCE = 3  # replacements of one chunk for slowness: after that the link is what it is


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How many, how fast, how long. Seconds and bytes a second."""

    segments: int = 8
    attempts: int = 8  # consecutive failures of a source without a byte
    longest_pause: float = 60.0
    minimum_rate: float = 4096.0  # of one segment; slower ones are replaced
    slow_factor: float = 10.0  # so many times slower than the others on average is slow, too
    window: float = 20.0  # over which a rate is taken, and the longest time without a byte
    connect: float = 10.0
    checkpoint: float = 10.0  # between journal lines of an unfinished chunk
    sleep: Callable[[float], None] = time.sleep


@dataclass(eq=False)
class _Peer:
    """A source and what we have seen of it."""

    source: Source
    failures: int = 0
    proven: bool = False  # has sent a byte since it last failed
    rest_until: float = 0.0
    whole_only: bool = False
    demoted: bool = False
    slow: int = 0
    lost: Exception | None = None
    active: int = 0

    @property
    def name(self) -> str:
        return self.source.name


@dataclass
class Segments:
    """Fetches chunks of `pin` into `staged`. Not for several threads."""

    pin: Pin
    staged: Staging
    sources: Sequence[Source]
    pace: Pace
    progress: Progress
    _peers: list[_Peer] = field(init=False)
    _pending: list[int] = field(init=False, default_factory=list)
    _fresh: set[int] = field(init=False, default_factory=set)  # what is on disk of these is not to be continued
    _refused: dict[int, set[str]] = field(init=False, default_factory=lambda: defaultdict(set))
    _wrong: dict[int, list[str]] = field(init=False, default_factory=lambda: defaultdict(list))
    _replaced: Counter[int] = field(init=False, default_factory=Counter)
    _flights: dict[Flight, _Peer] = field(init=False, default_factory=dict)
    _finished: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=16))  # rates of good flights
    _events: "queue.SimpleQueue[Event]" = field(init=False, default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        """One peer a source."""
        self._peers = [_Peer(source) for source in self.sources]

    def fetch(self, chunks: Iterable[int], *, again: bool = False, avoid: Mapping[int, str] | None = None) -> None:
        """Return when every one of `chunks` has arrived. `again`: fetch them from their first byte although something
        of them is on disk. `avoid`: by chunk, the source to use only if no other gives it.

        Raises:
            TransferError: the network gave up; what came is staged.
            DownloadError: one chunk comes wrong again and again.
            CatalogError: no source has these bytes.
            OSError: the disk is full or failed.
        """
        self._pending = sorted(chunks)
        self._fresh = set(self._pending) if again else set()
        self._refused.clear()
        for chunk, name in (avoid or {}).items():
            self._refused[chunk].add(name)
        try:
            while self._pending or self._flights:
                self._launch()
                if self._flights:
                    self._handle_events()
                    self._watch()
                    self._show()
                elif self._pending:
                    self._unblock()
        except BaseException:
            self._abandon()
            raise
        self._show()

    def demote(self, name: str, reason: str) -> None:
        """Use a source only when all others are lost."""
        for peer in self._peers:
            if peer.name == name and not peer.demoted:
                peer.demoted = True
                log.warning("source_demoted", source=name, reason=reason)

    # Deciding

    def _usable(self) -> list[_Peer]:
        usable = [peer for peer in self._peers if peer.lost is None]
        return [peer for peer in usable if not peer.demoted] or usable

    def _launch(self) -> None:
        while len(self._flights) < self.pace.segments and (choice := self._choose()):
            peer, chunk = choice
            self._pending.remove(chunk)
            prefix = None if chunk in self._fresh else self.staged.arrivals.get(chunk)
            self._start(Flight(peer.source, [chunk], whole=False, prefix=prefix, failures_before=peer.failures), peer)

    def _choose(self) -> tuple[_Peer, int] | None:
        now = time.monotonic()
        ranged = [peer for peer in self._usable() if not peer.whole_only]
        share = self.pace.segments if len(ranged) == 1 else -(-self.pace.segments // 2)
        for peer in ranged:
            if peer.rest_until > now or peer.active >= (share if peer.proven else 1):
                continue
            for chunk in self._pending:
                if peer.name not in self._refused[chunk]:
                    return peer, chunk
        return None

    def _unblock(self) -> None:
        """Nothing flies and nothing could be launched: rest, be less choosy, read a whole object, or give up."""
        usable = self._usable()
        if not usable:
            raise self._all_lost()
        now = time.monotonic()
        ready = [peer for peer in usable if peer.rest_until <= now]
        if ready and not ready[0].whole_only:
            for chunk in self._pending:
                self._refused[chunk].clear()
        elif len(ready) == len(usable):
            best = ready[0]
            log.warning("server_sends_no_ranges", source=best.name, effect="one segment, from byte 0")
            flight = Flight(best.source, self._pending, whole=True, prefix=None, failures_before=best.failures)
            self._pending = []
            self._start(flight, best)
        else:
            peer = min((peer for peer in usable if peer.rest_until > now), key=lambda peer: peer.rest_until)
            self.pace.sleep(peer.rest_until - now)
            peer.rest_until = 0.0

    def _start(self, flight: Flight, peer: _Peer) -> None:
        flight.started = flight.marked_time = time.monotonic()
        self._flights[flight] = peer
        peer.active += 1
        arguments = (flight, self.staged, self._events.put, self.pace.checkpoint)
        threading.Thread(target=fly, args=arguments, daemon=True).start()

    # Hearing

    def _handle_events(self) -> None:
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=TICK_SECONDS)
            while True:
                self._handle(event)
                event = self._events.get_nowait()

    def _handle(self, event: Event) -> None:
        if event.flight not in self._flights:
            return
        peer = self._flights[event.flight]
        match event:
            case Begun():
                peer.proven = True
            case Reached(flight, arrival):
                self._reached(flight, peer, arrival)
            case Ended(flight, error):
                del self._flights[flight]
                peer.active -= 1
                left = [chunk for chunk in flight.chunks if chunk not in flight.landed]
                self._pending = sorted({*self._pending, *left})
                if error is not None:
                    self._failed(flight, peer, error)
                elif flight.landed:
                    self._finished.append(flight.received / max(time.monotonic() - flight.started, 1e-6))

    def _reached(self, flight: Flight, peer: _Peer, arrival: Arrival) -> None:
        chunk = arrival.chunk
        if not self._is_right(arrival):
            self._came_wrong(peer, arrival)
            return
        self.staged.note(arrival)
        self._fresh.discard(chunk)
        flight.useful = True
        peer.failures = 0
        if self.staged.is_complete(chunk):
            flight.landed.add(chunk)

    def _is_right(self, arrival: Arrival) -> bool:
        whole = arrival.length == self.staged.layout.size(arrival.chunk)
        return not whole or self.pin.chunks is None or self.pin.chunks[arrival.chunk] == arrival.sha256

    def _came_wrong(self, peer: _Peer, arrival: Arrival) -> None:
        chunk = arrival.chunk
        self._fresh.add(chunk)
        self._wrong[chunk].append(arrival.sha256)
        where = self.staged.layout.named([chunk])
        log.warning("chunk_differs_from_the_catalog", source=peer.name, where=where, times=len(self._wrong[chunk]))
        if len(self._usable()) > 1:
            self._refused[chunk].add(peer.name)
            # What was put together from several answers accuses nobody.
            if not arrival.seam:
                self.demote(peer.name, f"{where} differ from the catalog's digest")
        if len(self._wrong[chunk]) >= WRONG_DIGESTS:
            same = len(set(self._wrong[chunk])) == 1
            raise DownloadError(
                f"{self.pin.name}: {where} came wrong {WRONG_DIGESTS} times, last from {peer.name}; "
                + (
                    "always the same other bytes: the server or a proxy holds another object"
                    if same
                    else "other bytes each time: the link, a proxy or this machine's memory alters them"
                )
            )

    def _failed(self, flight: Flight, peer: _Peer, error: Exception) -> None:
        others = len(self._usable()) > 1
        if isinstance(error, SourceError):
            peer.lost = error
            log.warning("source_lost", source=peer.name, error=str(error))
            return
        if isinstance(error, RangesRefusedError):
            peer.whole_only = True
            return
        if not isinstance(error, TransferError):
            raise error
        if others:
            self._refused[flight.chunk].add(peer.name)
        if flight.cancelled and flight.useful:
            return
        if flight.useful:
            pause = max(error.pause, 1.0)
        elif flight.failures_before == peer.failures:
            # Segments that fail together are one failure.
            peer.failures += 1
            peer.proven = False
            pause = max(error.pause, 2.0**peer.failures)
        else:
            return
        if peer.failures >= self.pace.attempts:
            peer.lost = TransferError(f"{error}; gave up after {peer.failures} attempts without a new byte")
            return
        pause = min(pause, self.pace.longest_pause)
        peer.rest_until = time.monotonic() + pause
        staged = self.staged.staged_bytes
        log.warning("transfer_interrupted", error=str(error), staged_bytes=staged, retry_seconds=pause)

    def _watch(self) -> None:
        """Ask flights that are too slow to end; what they fetched stays, and another flight goes on from there."""
        now = time.monotonic()
        for flight, peer in self._flights.items():
            elapsed = now - flight.marked_time
            if elapsed < self.pace.window:
                continue
            flight.rate = (flight.received - flight.marked_bytes) / elapsed
            flight.marked_bytes, flight.marked_time = flight.received, now
            flying = [other.rate for other in self._flights if other is not flight and other.rate is not None]
            others = [*flying, *self._finished]
            slow = flight.rate < self.pace.minimum_rate or (
                bool(others) and flight.rate * self.pace.slow_factor < fmean(others)
            )
            if not slow or flight.whole or flight.cancelled or self._replaced[flight.chunk] >= PATIENCE:
                continue
            self._replaced[flight.chunk] += 1
            flight.cancelled = f"{peer.name}: {flight.rate:.0f} bytes a second"
            log.warning("segment_replaced", source=peer.name, bytes_per_second=round(flight.rate))
            peer.slow += 1
            if peer.slow >= PATIENCE and len(self._usable()) > 1:
                self.demote(peer.name, f"slow {peer.slow} times")

    def _show(self) -> None:
        flying = {flight.chunk: flight.position for flight in self._flights}
        resting = sum(arrival.length for chunk, arrival in self.staged.arrivals.items() if chunk not in flying)
        self.progress(resting + sum(flying.values()), self.pin.bytes)

    # Ending

    def _all_lost(self) -> DownloadError:
        told = "; ".join(str(peer.lost) for peer in self._peers)
        if all(isinstance(peer.lost, SourceError) for peer in self._peers):
            return CatalogError(told)
        staged = f"{self.staged.staged_bytes} of {self.pin.bytes} bytes are staged and the next run continues there"
        return TransferError(f"{told}; {staged}")

    def _abandon(self) -> None:
        """Stop the flights and write down what they have. A thread that waits for its peer ends by itself later: it
        writes nothing after it was cancelled."""
        for flight in self._flights:
            flight.cancelled = "stopped"
        deadline = time.monotonic() + 2.0
        with contextlib.suppress(queue.Empty, OSError):
            while self._flights and (left := deadline - time.monotonic()) > 0:
                event = self._events.get(timeout=left)
                if isinstance(event, Reached) and self._is_right(event.arrival):
                    self.staged.note(event.arrival)
                elif isinstance(event, Ended):
                    self._flights.pop(event.flight, None)
        self._flights.clear()
