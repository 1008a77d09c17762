"""Staged files lying in a folder: which ones nothing will continue any more, and removing them."""

from collections.abc import Iterable
from pathlib import Path

from downloader.catalog import Entry, Pin, Unpinned
from downloader.staging import part_path

_SUFFIXES = (".part", ".part.journal", ".part.journal.new", ".part.copy", ".part.rejected")


def partials_of(folder: Path, entry: Entry) -> list[Path]:
    """Every staged, quarantined or journal file of any revision of one artifact."""
    return sorted(path for path in folder.glob(f"{entry.file}.*") if path.name.endswith(_SUFFIXES))


def superseded(folder: Path, entries: Iterable[Entry]) -> list[Path]:
    """Those files of these artifacts that no download would continue: other revisions, quarantined ones, copies."""
    entries = list(entries)
    kept = {part_path(folder, pin).name for pin in entries if isinstance(pin, Pin)}
    kept |= {name + ".journal" for name in kept}
    found = {path for entry in entries for path in partials_of(folder, entry) if path.name not in kept}
    return sorted(found)


def unpinned_part(folder: Path, entry: Unpinned) -> Path:
    """Where an unpinned download is staged while it runs."""
    return folder / f"{entry.file}.{entry.branch}.part"
