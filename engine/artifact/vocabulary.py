"""The table from token id to bytes, read from `tokenizer.json` and `tokenizer_config.json` (spec/model.md §13).

Only byte-level BPE is known: each character of a vocabulary entry stands for one byte (the map of GPT-2's encoder).
Added tokens are plain UTF-8. Some checkpoints list part of them only in `tokenizer_config.json`, so both files count.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.exits import ArtifactError

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token outside the BPE model; `special` ones are never shown to a reader."""

    id: int
    text: str
    special: bool


@dataclass(frozen=True)
class Vocabulary:
    """`tokens[id]` is what the token stands for; ids are contiguous from 0. `added` is sorted by id."""

    tokens: list[bytes]
    added: tuple[AddedToken, ...]

    def added_id(self, text: str) -> int | None:
        """Id of the added token spelled `text`."""
        return next((token.id for token in self.added if token.text == text), None)


def token_bytes(tokenizer_json: bytes, tokenizer_config_json: bytes) -> list[bytes]:
    """Bytes of every token, indexed by id. See `parse_vocabulary` for errors."""
    return parse_vocabulary(tokenizer_json, tokenizer_config_json).tokens


def parse_vocabulary(tokenizer_json: bytes, tokenizer_config_json: bytes) -> Vocabulary:
    """Merge `model.vocab`, `added_tokens` and `added_tokens_decoder`.

    Raises:
        ArtifactError: a file is not a JSON object, the model is not byte-level BPE, an id is missing or named twice
            with different texts, an entry cannot be read as bytes, or there is no entry at all. The message names the
            file.
    """
    tokenizer = json_object(tokenizer_json, TOKENIZER)
    config = json_object(tokenizer_config_json, TOKENIZER_CONFIG)
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or not _byte_level(tokenizer.get("decoder")):
        kind = model.get("type") if isinstance(model, dict) else None
        raise ArtifactError(f"{TOKENIZER}: model {kind!r} is not BPE with a ByteLevel decoder; no other kind is known")
    entries = model.get("vocab")
    if not isinstance(entries, dict) or not entries:
        raise ArtifactError(f"{TOKENIZER}: model.vocab is empty")

    table: dict[int, bytes] = {}
    to_byte = _BYTE_OF_CHARACTER
    for text, number in entries.items():
        if type(number) is not int or number < 0 or number in table:
            raise ArtifactError(f"{TOKENIZER}: vocabulary entry {text!r} has the id {number!r}, invalid or taken")
        try:
            table[number] = bytes([to_byte[character] for character in text])
        except KeyError as error:
            raise ArtifactError(f"{TOKENIZER}: vocabulary entry {text!r} is not byte-level: {error}") from error

    added = _added_tokens(tokenizer, config)
    for token in added:
        known = table.setdefault(token.id, token.text.encode())
        if known != token.text.encode():
            raise ArtifactError(f"token {token.id} is {known!r} in model.vocab and {token.text!r} in added tokens")
    count = len(table)
    if max(table) != count - 1:
        missing = next(number for number in range(count) if number not in table)
        raise ArtifactError(
            f"{TOKENIZER} and {TOKENIZER_CONFIG}: {count} tokens reach id {max(table)}, but id {missing} is absent"
        )
    return Vocabulary([table[number] for number in range(count)], added)


def json_object(data: bytes, name: str) -> dict[str, Any]:
    """Parse resource `name`.

    Raises:
        ArtifactError: it is empty, not UTF-8, not JSON, or not an object.
    """
    if not data:
        raise ArtifactError(f"{name} is empty")
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{name} ({len(data)} bytes) is damaged: {error}") from error
    if not isinstance(value, dict):
        raise ArtifactError(f"{name} is not a JSON object")
    return value


def _added_tokens(tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[AddedToken, ...]:
    first, second = tokenizer.get("added_tokens") or [], config.get("added_tokens_decoder") or {}
    if not isinstance(first, list) or not isinstance(second, dict):
        raise ArtifactError(f"{TOKENIZER}: added_tokens is not a list, or added_tokens_decoder not an object")
    rows: list[tuple[str, Any, Any]] = [
        (TOKENIZER, row.get("id") if isinstance(row, dict) else None, row) for row in first
    ]
    rows += [(TOKENIZER_CONFIG, int(key) if key.isdecimal() else key, row) for key, row in second.items()]
    by_id: dict[int, AddedToken] = {}
    for name, number, row in rows:
        text = row.get("content") if isinstance(row, dict) else None
        if type(number) is not int or number < 0 or not isinstance(text, str) or not text:
            raise ArtifactError(f"{name}: added token {number!r} has no id or no content")
        for flag in ("lstrip", "rstrip", "single_word"):
            if row.get(flag):
                raise ArtifactError(f"{name}: added token {text!r} sets {flag}, which this version cannot honour")
        token = AddedToken(number, text, bool(row.get("special")))
        known = by_id.setdefault(number, token)
        if known.text != text:
            raise ArtifactError(f"{name}: token {number} is {text!r} here and {known.text!r} in {TOKENIZER}")
        if token.special and not known.special:
            by_id[number] = token
    texts = [token.text for token in by_id.values()]
    if len(set(texts)) != len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise ArtifactError(f"{TOKENIZER} and {TOKENIZER_CONFIG}: added token {twice!r} has two ids")
    return tuple(by_id[number] for number in sorted(by_id))


def _byte_level(decoder: object) -> bool:
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        return any(_byte_level(step) for step in decoder.get("decoders") or [])
    return decoder.get("type") == "ByteLevel"


def _byte_characters() -> dict[str, int]:
    # Printable Latin-1 bytes stand for themselves; the others take the code points from 256 on, in order.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF_CHARACTER = _byte_characters()
