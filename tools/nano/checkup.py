"""What a model in training can do on held-out examples, teacher forced: quick, and close to what it will generate.

An answer counts as exact when the model would have chosen every token of the last turn; greedy decoding then gives
that very answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tools.nano.data.batches import (
    Batches,
    Mixture,
    TokenBatch,
    held_out_examples,
    pack_examples,
)
from tools.nano.data.render import Rendered
from tools.nano.data.tasks import EVALUATED
from tools.nano.losses import draft_steps, gather, losses
from tools.nano.model import Nano


@dataclass(frozen=True)
class Exam:
    """Prepared examples: for each task the packed rows and where each example lies in them."""

    tasks: dict[str, tuple[TokenBatch, list[slice]]]
    text: TokenBatch


def make_exam(corpus: Path, *, count: int, tasks: Sequence[str], row: int = 1024, seed: int = 0) -> Exam:
    """Render `count` examples a task. Examples that are longer than `row` get rows of their own."""
    _, examples = held_out_examples(corpus, {name: EVALUATED[name] for name in tasks}, count, seed)
    text = Mixture(tokens=8 * row, row=row, long_share=0, text_share=1, depth=0)
    return Exam(
        {name: pack_examples(found, max(row, _whole_chunks(found))) for name, found in examples.items()},
        Batches(corpus, text, seed=seed, split="held-out")[0],
    )


def _whole_chunks(examples: Sequence[Rendered]) -> int:
    return -(-max(len(example.token_ids) for example in examples) // 64) * 64


def check_up(model: Nano, exam: Exam, device: torch.device, dtype: torch.dtype | None) -> dict[str, Any]:
    """Exact answers and acceptance of draft steps 1 to 3 by task, and the perplexity of held-out text."""
    report: dict[str, Any] = {"exact": {}, "accepted": {}}
    with torch.no_grad(), torch.autocast(device.type, dtype, enabled=dtype is not None):
        for name, (batch, spans) in exam.tasks.items():
            exact, accepted = _answers(model, batch.to(device), spans)
            report["exact"][name] = round(exact, 4)
            report["accepted"][name] = [round(value, 4) for value in accepted]
        text = losses(model, exam.text.to(device))
        report["perplexity"] = round(math.exp(float(text.following)), 3)
    return report


def _answers(model: Nano, batch: TokenBatch, spans: Sequence[slice]) -> tuple[float, list[float]]:
    packing = model.pack(batch.documents)
    hidden = model(batch.token_ids, packing)
    chosen = model.logits(gather(hidden, batch.following.places)).argmax(-1)
    right = (chosen == batch.following.labels).cpu().numpy()
    places = batch.following.places.cpu().numpy()
    exact = []
    for span in spans:
        inside = np.flatnonzero((places >= span.start) & (places < span.stop))
        # The last turn is what lies behind the last gap between targets.
        gaps = np.flatnonzero(np.diff(places[inside]) > 1)
        exact.append(right[inside[gaps[-1] + 1 if len(gaps) else 0 :]].all())
    accepted = []
    for step, targets in zip(draft_steps(model, batch, hidden), batch.drafts, strict=True):
        drafted = model.logits(gather(step, targets.places)).argmax(-1)
        accepted.append(float((drafted == targets.labels).float().mean()))
    return float(np.mean(exact)), accepted
