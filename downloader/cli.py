"""`download-model NAME`: fetch, verify, repair, list and clean pinned artifacts; lend them to other boxes.

`download-model verify [--repair] NAME` is `download-model NAME --verify` (or `--repair`);
`download-model serve --dir FOLDER` gives a folder's artifacts to other boxes.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from downloader import staging
from downloader.catalog import DEFAULT_CATALOG, Entry, Pin, Unpinned, entry, find, read_catalog
from downloader.errors import CatalogError, DownloadError
from downloader.fetch import Surroundings, fetch, locate, repair
from downloader.partials import partials_of, superseded
from downloader.progress import shown
from downloader.segments import Pace
from downloader.serve import PORT, FolderServer
from downloader.signature import DEFAULT_KEYS, POLICIES, Policy
from downloader.sources import given_sources
from downloader.unpinned import fetch_unpinned, promises
from downloader.verify import inspect, is_remembered

MOST_SEGMENTS = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 in place, 1 failed, 2 cannot work as asked."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == ["serve"]:
            return _serve(words[1:])
        if words[:1] == ["verify"]:
            words = [*words[1:], "--verify"] if "--repair" not in words else words[1:]
        return _run(_parser().parse_args(words))
    except DownloadError as error:
        print(f"download-model: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("download-model: stopped; the next run continues where this one ended", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="download-model",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", help="catalog name, for example qwen38-27b")
    parser.add_argument("--catalog", type=Path, help="pins to use [NINFER_CATALOG, else etc/models.toml]")
    parser.add_argument(
        "--catalog-policy",
        choices=POLICIES,
        help="what to do unless a trusted key signed the catalog [NINFER_CATALOG_POLICY, else warn]",
    )
    parser.add_argument(
        "--catalog-keys", type=Path, help="folder of trusted keys, *.pub [NINFER_CATALOG_KEYS, else etc/keys]"
    )
    _add_folder(parser)
    parser.add_argument(
        "--from",
        dest="sources",
        action="append",
        default=[],
        metavar="SOURCE",
        help="folder, file or address to try before the hub; repeatable [then NINFER_SOURCES, separated by spaces]",
    )
    parser.add_argument("--offline", action="store_true", help="use only sources on this network [NINFER_OFFLINE=1]")
    parser.add_argument(
        "--segments", type=_segments, default=8, help=f"ranges fetched at the same time, 1 to {MOST_SEGMENTS} [8]"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="show the catalog, what is in place, and left-overs")
    action.add_argument("--verify", action="store_true", help="check the file that is in place, fetch nothing")
    action.add_argument("--repair", action="store_true", help="check it and fetch only its damaged ranges again")
    action.add_argument(
        "--clean", action="store_true", help="remove staged files: of this model, or without a name all superseded ones"
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    folder = _folder(options)
    environ = os.environ
    catalog = read_catalog(
        options.catalog or Path(environ.get("NINFER_CATALOG") or DEFAULT_CATALOG),
        policy=_policy(options.catalog_policy or environ.get("NINFER_CATALOG_POLICY") or "warn"),
        keys=options.catalog_keys or Path(environ.get("NINFER_CATALOG_KEYS") or DEFAULT_KEYS),
        warn=lambda sentence: print(f"download-model: warning: {sentence}", file=sys.stderr),
    )
    if options.list:
        return _list(catalog, folder)
    if options.clean:
        return _clean(catalog, options.name, folder)
    if options.name is None:
        raise CatalogError(f"which model? The catalog has {', '.join(sorted(catalog))}")
    found = entry(catalog, options.name)
    offline = options.offline or environ.get("NINFER_OFFLINE", "").lower() in ("1", "on", "true", "yes")
    surroundings = Surroundings(
        sources=given_sources(options.sources, environ), offline=offline, pace=Pace(segments=options.segments)
    )
    if options.verify:
        return _verify(find(catalog, options.name), folder)
    if options.repair:
        return _repair(find(catalog, options.name), folder, surroundings)
    if isinstance(found, Unpinned):
        return _fetch_unpinned(found, folder, offline=offline)
    with shown(found.name) as report:
        trust_size = environ.get("NINFER_SKIP_SHA256") == "1"
        path = fetch(found, folder, report=report, surroundings=surroundings, trust_size=trust_size)
    print(f"{found.name}: in place and {'accepted by size' if trust_size else 'verified'}: {path}")
    return 0


def _list(catalog: dict[str, Entry], folder: Path) -> int:
    for found in catalog.values():
        if isinstance(found, Unpinned):
            path = folder / found.file
            print(f"{found.name:<24}{'?':>8} GiB  {f'present: {path}' if path.exists() else 'absent'} (not pinned)")
            continue
        path = locate(found, folder)
        part = staging.part_path(folder, found)
        if path.exists():
            state = f"present: {path}"
        elif part.exists():
            state = f"{part.stat().st_blocks * 512} bytes staged"
        else:
            state = "absent"
        print(f"{found.name:<24}{found.bytes / 2**30:>8.2f} GiB  {state}")
    for path in superseded(folder, catalog.values()):
        print(f"left over: {path} ({path.stat().st_size} bytes); download-model --clean removes it")
    return 0


def _verify(pin: Pin, folder: Path) -> int:
    path = locate(pin, folder)
    if not path.exists():
        raise DownloadError(f"{path}: not there; `download-model {pin.name}` fetches it")
    if not is_remembered(path, pin):
        with shown(pin.name) as report:
            found = inspect(path, pin, report.verify)
        if not found.good:
            where = f"{pin.layout.named(found.damaged)} are damaged; " if found.sound else ""
            word = "--repair fetches only these again" if found.sound else f"`download-model {pin.name}` replaces it"
            raise DownloadError(f"{path}: not the pinned bytes (SHA-256 {pin.sha256}); {where}{word}")
    print(f"{pin.name}: verified: {path}")
    return 0


def _repair(pin: Pin, folder: Path, surroundings: Surroundings) -> int:
    with shown(pin.name) as report:
        damaged = repair(pin, folder, report=report, surroundings=surroundings)
    told = f"{pin.layout.named(damaged)} repaired" if damaged else "nothing to repair"
    print(f"{pin.name}: verified, {told}: {locate(pin, folder)}")
    return 0


def _fetch_unpinned(found: Unpinned, folder: Path, *, offline: bool) -> int:
    if offline:
        raise CatalogError(f"{found.name}: offline, and what is not pinned can come only from the hub")
    print(f"download-model: warning: {promises(found)}", file=sys.stderr)
    with shown(found.name) as report:
        got = fetch_unpinned(found, folder, progress=report.transfer)
    commit = f", commit {got.commit}" if got.commit else ""
    print(f"{found.name}: in place, not verified: {got.path} ({got.bytes} bytes, SHA-256 {got.sha256}{commit})")
    return 0


def _clean(catalog: dict[str, Entry], name: str | None, folder: Path) -> int:
    paths = superseded(folder, catalog.values()) if name is None else partials_of(folder, entry(catalog, name))
    for path in paths:
        print(f"removing {path} ({path.stat().st_size} bytes)")
        path.unlink()
    return 0


def _serve(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="download-model serve",
        description="Give a folder's artifacts to other boxes, read-only.",
        allow_abbrev=False,
    )
    _add_folder(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for the network [127.0.0.1]")
    parser.add_argument("--port", type=int, default=PORT, help=f"0 takes a free one [{PORT}]")
    options = parser.parse_args(words)
    folder = _folder(options)
    if not folder.is_dir():
        raise CatalogError(f"{folder}: no such folder; --dir or NINFER_MODEL_DIR names the folder of artifacts")
    try:
        server = FolderServer(folder, (options.host, options.port))
    except OSError as error:
        raise CatalogError(f"cannot listen on {options.host} port {options.port}: {error.strerror or error}") from error
    with server:
        names = ", ".join(path.name for path in server.artifacts()) or "nothing yet"
        host = f"[{options.host}]" if ":" in options.host else options.host
        print(
            f"serving {names} of {folder} on http://{host}:{server.server_address[1]}, to anyone who asks", flush=True
        )
        server.serve_forever()
    return 0


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, help="folder of artifacts [NINFER_MODEL_DIR, else ./models]")


def _folder(options: argparse.Namespace) -> Path:
    return options.dir or Path(os.environ.get("NINFER_MODEL_DIR") or "models")


def _policy(text: str) -> Policy:
    for policy in POLICIES:
        if text == policy:
            return policy
    raise CatalogError(f"NINFER_CATALOG_POLICY is {text!r}; {', '.join(POLICIES)} work")


def _segments(text: str) -> int:
    count = int(text)
    if not 1 <= count <= MOST_SEGMENTS:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {MOST_SEGMENTS}")
    return count
