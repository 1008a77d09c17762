"""Makes the corpus of free text: `python -m tools.nano.data.prepare`.

Downloads the packages of `sources.py` with the distribution's own tool, unpacks them without installing, takes their
text out, splits documents into train and held-out by a hash of their names, and writes token ids that are small enough
to travel. Network: only `apt-get download`. Packages that are already in the folder are not fetched again.
"""

import argparse
import hashlib
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from engine.text import Frontend
from tools.nano.data.corpus import SPLITS, Tokens, tokenizer_hash, write_corpus
from tools.nano.data.example import Split
from tools.nano.data.render import FolderResources
from tools.nano.data.sources import SOURCES, Document, Source
from tools.nano.tokenizer import FOLDER

BUILD = Path(__file__).parents[3] / "build" / "nano"
CORPUS = BUILD / "corpus"
# Every 50th document is held out.
HELD_OUT = 50


def fetch(source: Source, packages: Path) -> tuple[Path, str]:
    """The package file and its SHA-256; another version than the pinned one is taken, and said so in the record."""
    packages.mkdir(parents=True, exist_ok=True)
    if not any(packages.glob(f"{source.package}_*.deb")):
        subprocess.run(["apt-get", "download", "-q", source.package], cwd=packages, check=True)
    (path,) = packages.glob(f"{source.package}_*.deb")
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def unpack(path: Path, folder: Path) -> None:
    """Unpack a package into `folder`, once."""
    if not folder.is_dir():
        subprocess.run(["dpkg", "-x", path, folder], check=True)


def split_of(name: str) -> Split:
    """The side of a document: a matter of its name alone."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    return "held-out" if number % HELD_OUT == 0 else "train"


def encode(frontend: Frontend, document: Document) -> Tokens:
    """Token ids with the end mark."""
    end = frontend.vocabulary.index(b"<|endoftext|>")
    return np.array([*frontend.encode(document.text), end], np.uint16)


def prepare(build: Path = BUILD, corpus: Path = CORPUS) -> dict[str, Any]:
    """Make the corpus and return its record."""
    frontend = Frontend.load(FolderResources())
    splits: dict[Split, list[Tokens]] = {split: [] for split in SPLITS}
    record: dict[str, Any] = {"tokenizer": tokenizer_hash(FOLDER), "packages": {}}
    for source in SOURCES:
        path, digest = fetch(source, build / "packages")
        if digest != source.sha256:
            print(f"{path.name} is not the pinned {source.version}: the corpus will differ from the recorded one")
        unpack(path, build / "unpacked" / source.package)
        counts = dict.fromkeys(SPLITS, 0)
        for document in source.read(build / "unpacked" / source.package):
            if sum(counts.values()) >= source.tokens:
                break
            tokens = encode(frontend, document)
            split = split_of(f"{source.package}/{document.name}")
            splits[split].append(tokens)
            counts[split] += len(tokens)
        record["packages"][source.package] = {"file": path.name, "sha256": digest, "tokens": counts}
        print(f"{source.package}: {counts}", flush=True)
    write_corpus(corpus, dict(splits), record)
    return record


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=BUILD, help="where packages are kept")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder to write")
    args = parser.parse_args()
    prepare(args.build, args.corpus)
