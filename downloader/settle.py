"""Prove that a staged file is the pinned one, and when it is not, find the ranges that are wrong and fetch those again.

The order of suspicion: what the disk changed after it arrived; chunks put together from several answers; what a source
other than the hub gave; everything. The last is a second reading of the whole, no more than starting over would cost,
and it ends early when it is plain that the source holds another object.
"""

from collections.abc import Iterator
from pathlib import Path

import structlog

from downloader.catalog import Pin
from downloader.chunks import Digests, Progress, read_digests
from downloader.errors import CatalogError, DownloadError
from downloader.segments import Segments
from downloader.staging import Staging

log = structlog.get_logger(__name__)
BATCH = 16  # chunks read a second time before the whole is looked at again
OTHER_OBJECT = 4  # so many chunks that differ at a second reading are no accident


def settle(pin: Pin, staged: Staging, segments: Segments, hub: str, progress: Progress) -> Digests:
    """The digests of the staged file, which is the pinned one. `hub` is the name of the most trusted source.

    Raises:
        DownloadError: the bytes are not the pinned ones and were put aside, or the disk damages them.
        CatalogError: the catalog contradicts itself.
        TransferError: the network gave up meanwhile; what came is staged.
        OSError: the disk is full or failed.
    """
    staged.sync()
    digests = _mend_disk(pin, staged, segments, progress)
    if digests.whole == pin.sha256:
        return digests
    if pin.chunks is not None:
        raise CatalogError(
            f"{pin.name}: every chunk has the catalog's digest and the whole has not: the catalog is wrong"
        )
    log.warning(
        "content_differs", sha256=digests.whole, pinned=pin.sha256, effect="suspicious ranges are fetched again"
    )
    for suspects, accused in _suspicions(staged, hub):
        changed = _read_again(staged, segments, suspects)
        if not changed:
            continue
        log.warning("ranges_fetched_again", where=staged.layout.named(changed), bytes_differed=True)
        digests = _mend_disk(pin, staged, segments, progress)
        if digests.whole == pin.sha256:
            if accused:
                segments.demote(accused, f"{staged.layout.named(changed)} were not the pinned bytes")
            return digests
        if not accused and len(changed) >= OTHER_OBJECT:
            break
    names = ", ".join(source.name for source in segments.sources)
    rejected = _put_aside(staged)
    raise DownloadError(
        f"{names}: content differs from the pin (expected SHA-256 {pin.sha256}); it was put aside as {rejected}, "
        "and the next run starts over. If this repeats, the server, a proxy or this machine's memory alters the bytes"
    )


def _mend_disk(pin: Pin, staged: Staging, segments: Segments, progress: Progress) -> Digests:
    """Digests of what is on disk once it is what arrived."""
    digests = read_digests(staged.path, pin.chunk_bytes, progress)
    damaged = staged.damaged(digests.chunks)
    if not damaged or digests.whole == pin.sha256:
        return digests
    log.warning("staged_ranges_damaged", path=str(staged.path), where=staged.layout.named(damaged))
    segments.fetch(damaged, again=True)
    staged.sync()
    digests = read_digests(staged.path, pin.chunk_bytes, progress)
    if still := staged.damaged(digests.chunks):
        raise DownloadError(
            f"{staged.path}: {staged.layout.named(still)} are read back other than they were written, twice: "
            "the disk or this machine's memory is failing; check both before the next run"
        )
    return digests


def _suspicions(staged: Staging, hub: str) -> Iterator[tuple[list[int], str]]:
    """Chunks to read a second time, and the source that is accused by name where it is one."""
    arrivals = [staged.arrivals[chunk] for chunk in sorted(staged.arrivals)]
    seen: set[int] = set()
    if seams := [arrival.chunk for arrival in arrivals if arrival.seam]:
        seen.update(seams)
        yield seams, ""
    for name in sorted({arrival.source for arrival in arrivals} - {hub}):
        chunks = [arrival.chunk for arrival in arrivals if arrival.source == name and arrival.chunk not in seen]
        seen.update(chunks)
        yield chunks, name
    rest = [arrival.chunk for arrival in arrivals if arrival.chunk not in seen]
    for begin in range(0, len(rest), BATCH):
        yield rest[begin : begin + BATCH], ""


def _read_again(staged: Staging, segments: Segments, chunks: list[int]) -> list[int]:
    """The chunks that came otherwise this time, from another source where there is one."""
    before = {chunk: staged.arrivals[chunk] for chunk in chunks}
    segments.fetch(chunks, again=True, avoid={chunk: arrival.source for chunk, arrival in before.items()})
    staged.sync()
    return [chunk for chunk in chunks if staged.arrivals[chunk].sha256 != before[chunk].sha256]


def _put_aside(staged: Staging) -> Path:
    rejected = staged.path.with_name(f"{staged.path.name}.rejected")
    staged.path.replace(rejected)
    staged.journal.path.unlink(missing_ok=True)
    return rejected
