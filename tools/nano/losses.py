"""What a batch costs: the loss of the model, of its draft steps, and of uneven routing."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from tools.nano.data.batches import Targets, TokenBatch
from tools.nano.model import Nano

DRAFT_WEIGHT = 0.3
BALANCE_WEIGHT = 0.01


@dataclass(frozen=True)
class Losses:
    """Mean losses a token. `drafts` has one of each draft step; `balance` is 0 for a dense model."""

    total: torch.Tensor
    following: torch.Tensor
    drafts: tuple[torch.Tensor, ...]
    balance: torch.Tensor


def losses(model: Nano, batch: TokenBatch) -> Losses:
    """Run a batch forward.

    The total is the model's loss, plus `DRAFT_WEIGHT` times the mean over draft steps, plus `BALANCE_WEIGHT` times the
    load-balancing loss.
    """
    packing = model.pack(batch.documents, whole_rows=batch.whole_rows)
    hidden = model(batch.token_ids, packing)
    following = weighted_loss(model, hidden, batch.following)
    steps = draft_steps(model, batch, hidden)
    drafts = tuple(weighted_loss(model, step, wanted) for step, wanted in zip(steps, batch.drafts, strict=True))
    balance = model.balance()
    balance = following.new_zeros(()) if balance is None else balance
    total = following + BALANCE_WEIGHT * balance
    if drafts:
        total = total + DRAFT_WEIGHT * torch.stack(drafts).mean()
    return Losses(total, following, drafts, balance)


def draft_steps(model: Nano, batch: TokenBatch, hidden: torch.Tensor) -> list[torch.Tensor]:
    """Outputs of the draft steps that the batch trains: the first on every row, later ones on its first rows."""
    if not batch.drafts:
        return []
    rows = len(batch.token_ids)
    deep = batch.deep_rows if len(batch.drafts) > 1 else 0
    parts: list[list[torch.Tensor]] = []
    for begin, end, depth in ((0, deep, len(batch.drafts)), (deep, rows, 1)):
        if end > begin:
            packing = model.pack(batch.documents[begin:end], whole_rows=batch.whole_rows)
            parts.append(model.drafts(batch.token_ids[begin:end], hidden[begin:end], packing, depth))
    return [torch.cat([part[0] for part in parts]), *(parts[0][1:])]


def gather(hidden: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Columns of hidden [B, L, H] at flat places [N]: [N, H]."""
    return hidden.flatten(0, 1).index_select(0, places)


def weighted_loss(model: Nano, hidden: torch.Tensor, targets: Targets) -> torch.Tensor:
    """Cross-entropy at the targets, averaged by weight; 0 when there are none."""
    logits = model.logits(gather(hidden, targets.places)).float()
    each = functional.cross_entropy(logits, targets.labels, reduction="none")
    return (each * targets.weights).sum() / targets.weights.sum().clamp(min=1e-6)
