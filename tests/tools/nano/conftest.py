"""A small corpus, made of drawn sentences."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from engine.text import Frontend
from tools.nano.data.batches import open_held_out
from tools.nano.data.corpus import Prose, tokenizer_hash, write_corpus
from tools.nano.data.render import FolderResources, Renderer
from tools.nano.data.tasks.copying import sentence
from tools.nano.tokenizer import FOLDER


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a corpus of about 20,000 tokens a split."""
    frontend, random = Frontend.load(FolderResources()), Random(5)
    end = frontend.vocabulary.index(b"<|endoftext|>")

    def document() -> "np.ndarray[tuple[int], np.dtype[np.uint16]]":
        text = " ".join(sentence(random) for _ in range(100))
        return np.array([*frontend.encode(text), end], np.uint16)

    folder = tmp_path_factory.mktemp("corpus")
    splits = {"train": [document() for _ in range(20)], "held-out": [document() for _ in range(20)]}
    write_corpus(folder, splits, {"tokenizer": tokenizer_hash(FOLDER)})  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="session")
def materials(corpus: Path) -> tuple[Renderer, Prose]:
    """Renderer and held-out materials."""
    return open_held_out(corpus)
