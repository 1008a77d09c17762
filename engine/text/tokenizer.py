"""Text to token ids, with control tokens kept apart from ordinary text (spec/model.md §13)."""

import json
import re
from collections.abc import Callable, Sequence

import tokenizers

from engine.artifact.vocabulary import TOKENIZER, Vocabulary, json_object, parse_vocabulary
from engine.exits import ArtifactError


class Tokenizer:
    """Byte-level BPE. The underlying encoder has no added tokens, so ordinary text can never become one."""

    def __init__(self, tokenizer_json: bytes, tokenizer_config_json: bytes) -> None:
        """Build from the two resources.

        Raises:
            ArtifactError: see `parse_vocabulary`; also when the encoder cannot be built, or when the BPE model itself
                can produce an added token.
        """
        self.vocabulary: Vocabulary = parse_vocabulary(tokenizer_json, tokenizer_config_json)
        record = json_object(tokenizer_json, TOKENIZER)
        # Added tokens are matched by us; a post-processor may add a BOS, and truncation would lose text silently.
        record |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        try:
            self._encoder = tokenizers.Tokenizer.from_str(json.dumps(record))
        except Exception as error:  # the library raises bare Exception
            raise ArtifactError(f"{TOKENIZER}: {error}") from error
        self._control = {token.text: token.id for token in self.vocabulary.added}
        longest_first = sorted(self._control, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
        numbers = set(self._control.values())
        for text in longest_first:
            if numbers.intersection(self.encode(text)):
                raise ArtifactError(f"{TOKENIZER}: ordinary text {text!r} encodes to an added token")

    @property
    def control_texts(self) -> Sequence[str]:
        """Spellings of all added tokens, special or not."""
        return list(self._control)

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as ordinary text: a control token's spelling stays letters."""
        return self._encode_all([text])[0]

    def encode_template(self, text: str, ordinary: Callable[[str], str]) -> list[int]:
        """Ids of a rendered prompt: control spellings become their ids, and `ordinary` is applied to the rest."""
        pieces = self._pattern.split(text) if self._pattern else [text]
        # re.split with one group alternates: ordinary text at even places, control spellings at odd ones.
        encoded = iter(self._encode_all([ordinary(piece) for piece in pieces[::2] if piece]))
        ids: list[int] = []
        for place, piece in enumerate(pieces):
            if place % 2:
                ids.append(self._control[piece])
            elif piece:
                ids += next(encoded)
        return ids

    def _encode_all(self, texts: list[str]) -> list[list[int]]:
        # The batch call releases the GIL while it works; the single call does not.
        return [encoding.ids for encoding in self._encoder.encode_batch_fast(texts, add_special_tokens=False)]
