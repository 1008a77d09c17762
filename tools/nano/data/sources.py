"""Where free text comes from: Debian packages, their licences, and how text is taken out of each (see DATA.md)."""

import gzip
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path


@dataclass(frozen=True)
class Document:
    """A piece of text and its name inside the package, which decides its split."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """A package.

    Attributes:
        sha256: of the package file of this version.
        licence: as the package's copyright file states it for the text used here.
        read: documents from the folder of the unpacked package, in a fixed order.
        tokens: at most about so many are taken.
    """

    package: str
    version: str
    sha256: str
    licence: str
    read: Callable[[Path], Iterator[Document]]
    tokens: int = 3_500_000


def files(*patterns: str, text: Callable[[str], str] = str) -> Callable[[Path], Iterator[Document]]:
    """Reader: each file that matches is a document; `text` cleans it. Files may be compressed."""

    def read(folder: Path) -> Iterator[Document]:
        for pattern in patterns:
            for path in sorted(folder.glob(pattern)):
                data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                cleaned = text(data.decode(errors="ignore")).strip()
                if len(cleaned) > 500:
                    yield Document(path.relative_to(folder).as_posix(), cleaned + "\n")

    return read


def spread(reader: Callable[[Path], Iterator[Document]]) -> Callable[[Path], Iterator[Document]]:
    """Reader: the documents in an order that mixes folders, so that a limit cuts no subject off."""

    def read(folder: Path) -> Iterator[Document]:
        yield from sorted(reader(folder), key=lambda document: hashlib.sha256(document.name.encode()).digest())

    return read


def definitions(folder: Path) -> Iterator[Document]:
    """WordNet: one line a sense, "words: definition", a few hundred lines a document."""
    for kind in ("noun", "verb", "adj", "adv"):
        lines: list[str] = []
        for line in (folder / f"usr/share/wordnet/data.{kind}").read_text().splitlines():
            if line.startswith("  "):
                continue  # the licence stands at the head of the file
            head, _, gloss = line.partition(" | ")
            fields = head.split(" ")
            words = [fields[4 + 2 * index].partition("(")[0].replace("_", " ") for index in range(int(fields[3], 16))]
            lines.append(f"{', '.join(words)}: {gloss.strip()}")
        for begin in range(0, len(lines), 300):
            yield Document(f"{kind}/{begin}", "\n".join(lines[begin : begin + 300]) + "\n")


def plain_html(page: str) -> str:
    """The readable text of a page: paragraphs apart, no navigation."""
    parser = _Text()
    parser.feed(page)
    lines = ("".join(parser.pieces)).splitlines()
    kept: list[str] = []
    for line in (" ".join(line.split()) for line in lines):
        if line or (kept and kept[-1]):
            kept.append(line)
    return "\n".join(kept)


class _Text(HTMLParser):
    _SKIPPED = frozenset({"script", "style", "head", "nav"})
    _BLOCKS = frozenset({"p", "div", "li", "h1", "h2", "h3", "h4", "pre", "tr", "dt", "dd", "br", "table", "ul", "ol"})

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._skipping = 0
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipping += tag in self._SKIPPED
        self._verbatim += tag == "pre"
        if tag in self._BLOCKS:
            self.pieces.append("\n" if tag in {"br", "tr"} else "\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._skipping = max(self._skipping - (tag in self._SKIPPED), 0)
        self._verbatim = max(self._verbatim - (tag == "pre"), 0)
        if tag in self._BLOCKS:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.pieces.append(data if self._verbatim else data.replace("\n", " "))


_LINUX = "usr/share/doc/linux-doc-6.1/html/_sources/"

SOURCES = (
    Source(
        package="debian-handbook",
        version="11.20220922",
        sha256="3d5dbeac1f1afc9c094eab9d0f701f6ecff99c4927d5a4794cf6c85678134faa",
        licence="GPL-2.0+ or CC-BY-SA-3.0",
        read=files("usr/share/doc/debian-handbook/html/en-US/*.html", text=plain_html),
    ),
    Source(
        package="debian-reference-en",
        version="2.100",
        sha256="9f31d3a17df505de09689ca255512ea58c1fc47c59bb1b0c7bf1c23362e9743f",
        licence="GPL-2+",
        read=files("usr/share/debian-reference/*.en.html", text=plain_html),
    ),
    Source(
        package="developers-reference",
        version="12.18",
        sha256="0dba82f6fa16e373f2a84ad07e7971aa9264ad2e7d2ae46b37edbc9c5fd57e2e",
        licence="GPL-2+",
        read=files("usr/share/developers-reference/_sources/*.rst.txt"),
    ),
    Source(
        package="debian-policy",
        version="4.6.2.0",
        sha256="ef9d01b625c3b87c3a845c2cd1b66f1a16e9240b2b9e5bee53472a00e8457a39",
        licence="GPL-2+",
        read=files("usr/share/doc/debian-policy/policy.html/_sources/*.rst.txt"),
    ),
    Source(
        package="jargon",
        version="4.0.0-5.3",
        sha256="6f4db0f1a4f2b658d8a09e89fdb1814ad1487854463f01dc9158267811d4650f",
        licence="public domain",
        read=files("usr/share/info/jargon.info.gz"),
    ),
    Source(
        package="wordnet-base",
        version="1:3.0-37",
        sha256="61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
        licence="WordNet 3.0",
        read=definitions,
    ),
    Source(
        package="python3.11-doc",
        version="3.11.2-6+deb12u9",
        sha256="5b3594189d6ef9a6963ce0347fd307a1cc67620ad697e144db366070e2e146be",
        licence="PSF-2.0",
        read=spread(files("usr/share/doc/python3.11/html/_sources/**/*.txt")),
        tokens=2_500_000,
    ),
    Source(
        package="perl-doc",
        version="5.36.0-7+deb12u4",
        sha256="f4269cff4576d6f02a6756df842988e58451c7e945b08517dd235531b24e48f8",
        licence="GPL-1+ or Artistic",
        read=spread(files("usr/share/perl/5.36.0/pod/*.pod")),
        tokens=1_500_000,
    ),
    Source(
        package="linux-doc-6.1",
        version="6.1.192-3",
        sha256="f18dfe28dcab7bdbf9185be16b9521f5841277a6a96c374a6683a648d5d5fa4f",
        licence="GPL-2",
        read=spread(
            files(
                *(
                    f"{_LINUX}{part}/**/*.rst.txt"
                    for part in (
                        "RCU", "admin-guide", "core-api", "dev-tools", "doc-guide", "driver-api", "filesystems",
                        "kernel-hacking", "locking", "mm", "networking", "process", "scheduler", "trace", "usb",
                    )
                )
            )
        ),
        tokens=3_000_000,
    ),
)  # fmt: skip
