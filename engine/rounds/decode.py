"""One round: one step of every active lane, one column each."""

from collections.abc import Sequence

import torch

from engine.rounds.model import Span, together
from engine.rounds.runtime import Runtime
from engine.rounds.sampling import Draw, Drawn

Column = tuple[Span, Draw]


@torch.inference_mode()
def decode(runtime: Runtime, columns: Sequence[Column]) -> list[Drawn | Exception]:
    """Run each lane's newest token and sample the next. A lane whose step fails yields its exception."""
    if runtime.columns_together:
        return _step(runtime, columns)
    return [result for column in columns for result in _step(runtime, [column])]


def _step(runtime: Runtime, columns: Sequence[Column]) -> list[Drawn | Exception]:
    try:
        hidden = runtime.model.forward(together([span for span, _ in columns], runtime.device), runtime.pools)
        drawn = runtime.sampler.draw(runtime.model.logits(hidden), [draw for _, draw in columns])
    except Exception as error:
        return [error] * len(columns)
    return list(drawn)
