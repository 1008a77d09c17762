"""One prefill chunk of one lane."""

import torch

from engine.rounds.model import Span, together
from engine.rounds.runtime import Runtime
from engine.rounds.sampling import Draw, Drawn


@torch.inference_mode()
def prefill(runtime: Runtime, span: Span, draw: Draw | None) -> Drawn | None:
    """Put `span` into the pages and the state; sample the token after it if `draw` says so.

    Raises:
        NotFiniteError: the logits are not finite.
        Exception: whatever the model raised; the lane's state is then worthless.
    """
    hidden = runtime.model.forward(together([span], runtime.device), runtime.pools)
    if draw is None:
        return None
    drawn = runtime.sampler.draw(runtime.model.logits(hidden[-1:]), [draw])[0]
    if isinstance(drawn, Exception):
        raise drawn
    return drawn
