"""Perplexity by windows with a stride: every token of a stream but its first is scored once (spec/cli.md §3)."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.exits import ConfigurationError
from engine.quality.corpus import Corpus
from engine.quality.subject import PREFILL_CHUNK, SCORE_TILE, Subject
from engine.quality.windows import Window, sliding

SCHEMA = 2


@dataclass(frozen=True)
class ScoredWindow:
    """Total negative log-likelihood, in nats, of a window's targets, and how long it took."""

    window: Window
    nll: float
    seconds: float


@dataclass(frozen=True)
class ScoredStream:
    """The windows of one stream."""

    id: str
    domain: str
    tokens: int
    windows: tuple[ScoredWindow, ...]

    @property
    def scored(self) -> int:
        """Scored tokens."""
        return sum(item.window.targets for item in self.windows)

    @property
    def nll(self) -> float:
        """Total negative log-likelihood in nats."""
        return math.fsum(item.nll for item in self.windows)


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    tokens: int
    total: int
    windows: int
    nll: float

    @property
    def perplexity(self) -> float:
        """Of what is scored so far."""
        return perplexity(self.nll, self.tokens)


def perplexity(nll: float, tokens: int) -> float:
    """exp of the mean negative log-likelihood; infinite where that overflows."""
    mean = nll / tokens
    return math.exp(mean) if mean < 700 else math.inf


def score(
    subject: Subject,
    corpus: Corpus,
    context: int,
    stride: int,
    *,
    on_window: Callable[[Progress], None] = lambda progress: None,
    on_stream: Callable[[ScoredStream], None] = lambda stream: None,
) -> list[ScoredStream]:
    """Score all streams of `corpus`, each on its own, every window from empty state.

    Raises:
        ConfigurationError: context and stride do not go together or exceed the model, or a stream has under two tokens.
    """
    if context < 2 or not 1 <= stride < context:
        raise ConfigurationError(
            f"context {context}, stride {stride}; use a context of 2 or more, 1 <= stride < context"
        )
    longest = subject.config.max_position_embeddings
    if context > longest:
        raise ConfigurationError(f"context is {context}; the model reads at most {longest} tokens")
    encoded = [(stream, subject.tokenizer.encode(stream.text)) for stream in corpus.streams]
    for stream, ids in encoded:
        if len(ids) < 2:
            raise ConfigurationError(f"stream {stream.id!r} has {len(ids)} tokens; nothing can be scored")
    total = sum(len(ids) - 1 for _, ids in encoded)
    tokens, windows, nll = 0, 0, 0.0
    streams = []
    for stream, ids in encoded:
        scored = []
        for window in sliding(len(ids), context, stride):
            begun = time.monotonic()
            loss = _score(subject, ids, window)
            scored.append(ScoredWindow(window, loss, time.monotonic() - begun))
            tokens, windows, nll = tokens + window.targets, windows + 1, nll + loss
            on_window(Progress(tokens, total, windows, nll))
        streams.append(ScoredStream(stream.id, stream.domain, len(ids), tuple(scored)))
        on_stream(streams[-1])
    return streams


def _score(subject: Subject, ids: Sequence[int], window: Window) -> float:
    read = ids[window.begin : window.end - 1]
    targets = torch.tensor(ids[window.first : window.end])
    before = window.first - window.begin - 1  # rows whose next token an earlier window has scored
    total = 0.0
    for row, logs in subject.log_probabilities(read, before):
        wanted = targets[row - before : row - before + len(logs)]
        total -= float(logs.gather(1, wanted.unsqueeze(1)).double().sum())
    return total


def totals(streams: Sequence[ScoredStream]) -> dict[str, Any]:
    """Token-weighted sums of some streams, as the report has them."""
    tokens, nll = sum(stream.scored for stream in streams), math.fsum(stream.nll for stream in streams)
    return {
        "scored_tokens": tokens,
        "total_nll": nll,
        "mean_nll": nll / tokens,
        "perplexity": perplexity(nll, tokens),
    }


def by_domain(streams: Sequence[ScoredStream]) -> dict[str, dict[str, Any]]:
    """`totals` of each domain, in order of appearance."""
    domains = dict.fromkeys(stream.domain for stream in streams)
    return {domain: totals([stream for stream in streams if stream.domain == domain]) for domain in domains}


def report(
    subject: Subject,
    corpus: Corpus,
    streams: Sequence[ScoredStream],
    execution: Mapping[str, Any],
    timing: Mapping[str, Any],
) -> dict[str, Any]:
    """The content of report.json."""
    return {
        "schema": SCHEMA,
        "metric": "perplexity",
        "artifact": {
            "path": str(subject.path),
            "name": subject.name,
            "artifact_id": subject.artifact_id,
            "fingerprint": subject.fingerprint,
        },
        "corpus": {
            "name": corpus.name,
            "mode": corpus.mode,
            "sha256": corpus.sha256,
            "streams": len(corpus.streams),
        },
        "execution": {
            **execution,
            "prefill_chunk_tokens": PREFILL_CHUNK,
            "score_tile_tokens": SCORE_TILE,
            "kv_dtype": subject.settings.kv_dtype,
            "gdn_state_fp16": subject.settings.gdn_state_fp16,
        },
        "timing": dict(timing),
        "streams": [
            {
                "id": stream.id,
                "domain": stream.domain,
                "tokens": stream.tokens,
                **totals([stream]),
                "windows": [
                    {
                        "index": index,
                        "begin": item.window.begin,
                        "end": item.window.end,
                        "first_target": item.window.first,
                        "targets": item.window.targets,
                        "nll": item.nll,
                        "seconds": round(item.seconds, 6),
                    }
                    for index, item in enumerate(stream.windows)
                ],
            }
            for stream in streams
        ],
        "domains": by_domain(streams),
        "overall": totals(streams),
    }
