"""A model under measurement: its text stack on the CPU, run over windows of tokens that each start from nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.artifact import Artifact
from engine.artifact.vocabulary import TOKENIZER, TOKENIZER_CONFIG
from engine.exits import ConfigurationError, NoDeviceError
from engine.model import Batch, Segment, TextModel
from engine.text.tokenizer import Tokenizer
from kernels.attention import PAGE_TOKENS

CPU_LIMIT = 2 << 30
"""Largest payload that is measured on the CPU, in bytes."""

PREFILL_CHUNK = 1024
SCORE_TILE = 1024

KV_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Key-value formats that the plain torch model stores."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the model keeps what it has read: the names of `KV_DTYPES`, and whether DeltaNet states are 16-bit."""

    kv_dtype: str = "fp32"
    gdn_state_fp16: bool = False

    def __post_init__(self) -> None:
        """Refuse key-value formats that only a device has."""
        if self.kv_dtype not in KV_DTYPES:
            raise ConfigurationError(
                f"kv dtype {self.kv_dtype!r} cannot be measured on the CPU; use {' or '.join(KV_DTYPES)}"
            )


class Subject:
    """A model, its tokenizer, and the names it goes by in reports."""

    def __init__(self, path: Path, settings: Settings | None = None) -> None:
        """Load the artifact at `path`; it is closed again before this returns.

        Raises:
            ArtifactError: it cannot be read.
            NoDeviceError: it is too large for the CPU.
        """
        self.path = path
        self.settings = Settings() if settings is None else settings
        with Artifact.open(path) as artifact:
            size = artifact.directory.payload_bytes
            if size > CPU_LIMIT:
                raise NoDeviceError(f"{path}: {size} bytes are measured on a GPU; the CPU takes at most {CPU_LIMIT}")
            self.name = artifact.name
            self.artifact_id = artifact.artifact_id.hex()
            self.fingerprint = artifact.fingerprint
            self.config = artifact.text_config
            self.tokenizer = Tokenizer(
                artifact.resource("text", TOKENIZER), artifact.resource("text", TOKENIZER_CONFIG)
            )
            self.token_count = len(self.tokenizer.vocabulary.tokens)
            self.model = TextModel.load(
                artifact,
                self.config,
                device=torch.device("cpu"),
                dtype=torch.float32,
                token_count=self.token_count,
            )

    def hidden(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Final hidden vectors float32 [T, H] of tokens read from empty state."""
        pools = self.model.new_pools(
            -(-len(token_ids) // PAGE_TOKENS),
            1,
            kv_dtype=KV_DTYPES[self.settings.kv_dtype],
            state_dtype=torch.float16 if self.settings.gdn_state_fp16 else torch.float32,
        )
        ids = torch.tensor(token_ids, dtype=torch.int64)
        columns = []
        for begin in range(0, len(token_ids), PREFILL_CHUNK):
            end = min(begin + PREFILL_CHUNK, len(token_ids))
            batch = Batch(
                ids[begin:end],
                torch.arange(begin, end).expand(3, -1),
                [Segment(0, end - begin, begin, range(pools.pages), 0)],
            )
            with torch.inference_mode():
                columns.append(self.model.forward(batch, pools))
        return torch.cat(columns)

    def log_probabilities(self, token_ids: Sequence[int], first: int = 0) -> Iterator[tuple[int, torch.Tensor]]:
        """Log-probabilities of what follows token t, for t from `first` on, from empty state.

        Yields the place of the first row and float32 [rows, token count], at most `SCORE_TILE` rows at a time.
        """
        hidden = self.hidden(token_ids)
        for begin in range(first, len(token_ids), SCORE_TILE):
            with torch.inference_mode():
                rows = self.model.logits(hidden[begin : begin + SCORE_TILE]).log_softmax(-1)
            yield begin, rows  # outside: two of these read in turn would leave the mode on for everybody
