"""Token id to bytes (spec/model.md §13, spec/artifact.md §4.10)."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from engine.artifact.vocabulary import parse_vocabulary, token_bytes
from engine.exits import ArtifactError

NANO = Path(__file__).parents[2] / "etc" / "nano"
TOKENIZER = (NANO / "tokenizer.json").read_bytes()
CONFIG = (NANO / "tokenizer_config.json").read_bytes()


def _small(**changes: Any) -> bytes:
    record = {
        "model": {"type": "BPE", "vocab": {"a": 0, "Ġb": 1, "Ã©": 2}, "merges": []},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 3, "content": "<x>", "special": True}],
    }
    return json.dumps(record | changes).encode()


def test_small_table() -> None:
    config = json.dumps({"added_tokens_decoder": {"3": {"content": "<x>"}, "4": {"content": "<é>"}}}).encode()
    vocabulary = parse_vocabulary(_small(), config)
    assert vocabulary.tokens == [b"a", b" b", "é".encode(), b"<x>", "<é>".encode()]
    assert [(token.id, token.text, token.special) for token in vocabulary.added] == [
        (3, "<x>", True),
        (4, "<é>", False),
    ]
    assert vocabulary.added_id("<é>") == 4
    assert vocabulary.added_id("a") is None


def test_agrees_with_the_library_on_every_token() -> None:
    library = Tokenizer.from_str(TOKENIZER.decode())
    table = token_bytes(TOKENIZER, CONFIG)
    assert len(table) == 8192
    for token_id in range(library.get_vocab_size()):
        decoded = library.decode([token_id], skip_special_tokens=False)
        assert table[token_id].decode(errors="replace") == decoded


def test_every_byte_is_a_token() -> None:
    single = {token for token in token_bytes(TOKENIZER, CONFIG) if len(token) == 1}
    assert single == {bytes([byte]) for byte in range(256)}


@pytest.mark.parametrize(
    ("tokenizer", "config", "named"),
    [
        (b"", CONFIG, "tokenizer.json is empty"),
        (TOKENIZER[:-1], CONFIG, "tokenizer.json"),
        (TOKENIZER, b"", "tokenizer_config.json is empty"),
        (TOKENIZER, CONFIG[:-1], "tokenizer_config.json"),
        (b"\xff" + TOKENIZER, CONFIG, "tokenizer.json"),
        (b"[1]", CONFIG, "tokenizer.json is not a JSON object"),
        (b"[" * 100_000, CONFIG, "tokenizer.json"),
        (_small(model={"type": "BPE", "vocab": {}}), b"{}", "model.vocab is empty"),
        (_small(model={"type": "Unigram", "vocab": []}), b"{}", "'Unigram'"),
        (_small(model=None), b"{}", "not BPE"),
        (_small(decoder=None), b"{}", "ByteLevel"),
        (_small(model={"type": "BPE", "vocab": {"a": 0, "b": 0}}), b"{}", "'b' has the id 0"),
        (_small(model={"type": "BPE", "vocab": {"a": -1}}), b"{}", "-1"),
        (_small(model={"type": "BPE", "vocab": {"a": True}}), b"{}", "True"),
        (_small(model={"type": "BPE", "vocab": {"€": 0}}), b"{}", "not byte-level"),
        (_small(added_tokens=[{"id": 4, "content": "<x>"}]), b"{}", "id 3 is absent"),
        (_small(added_tokens=[{"id": 0, "content": "<x>"}]), b"{}", "token 0"),
        (_small(added_tokens=[{"id": 3, "content": ""}]), b"{}", "added token 3"),
        (_small(added_tokens=[{"id": "3", "content": "x"}]), b"{}", "added token '3'"),
        (_small(added_tokens=["x"]), b"{}", "added token None"),
        (_small(added_tokens={"x": 1}), b"{}", "not a list"),
        (_small(added_tokens=[{"id": 3, "content": "<x>", "lstrip": True}]), b"{}", "lstrip"),
        (_small(), b'{"added_tokens_decoder": {"3": {"content": "<y>"}}}', "token 3 is '<y>'"),
        (_small(), b'{"added_tokens_decoder": {"4": {"content": "<x>"}}}', "'<x>' has two ids"),
        (_small(), b'{"added_tokens_decoder": {"four": {"content": "<y>"}}}', "'four'"),
    ],
)
def test_damage_is_named(tokenizer: bytes, config: bytes, named: str) -> None:
    with pytest.raises(ArtifactError) as raised:
        token_bytes(tokenizer, config)
    assert named in str(raised.value)
