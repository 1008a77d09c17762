"""The distance between two models over the same text: divergence and agreement at every position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.exits import ConfigurationError
from engine.quality.subject import Subject


@dataclass(frozen=True)
class Comparison:
    """One value a position.

    divergence: float64, KL of the second model from the first, in nats. agree: whether both choose the same token.
    """

    divergence: npt.NDArray[np.float64]
    agree: npt.NDArray[np.bool_]

    def summary(self) -> dict[str, float]:
        """The figures that are published: means, tail and share."""
        percentiles = {f"kl_p{percent:g}": float(np.percentile(self.divergence, percent)) for percent in PERCENTILES}
        return {
            "positions": len(self.divergence),
            "kl_mean": float(self.divergence.mean()),
            **percentiles,
            "kl_max": float(self.divergence.max()),
            "top1_agreement": float(self.agree.mean()),
        }


PERCENTILES = (50, 90, 99, 99.9)


def compare(
    first: Subject,
    second: Subject,
    windows: Sequence[Sequence[int]],
    progress: Callable[[int], None] = lambda tokens: None,
) -> Comparison:
    """Run both models over windows of token ids and compare what each says comes next, at every position.

    The divergence is sum p log(p / q), p being the first model's probabilities; sums are float64.

    Raises:
        ConfigurationError: the models' tokens are not the same, or there is nothing to read.
    """
    if first.tokenizer.vocabulary.tokens != second.tokenizer.vocabulary.tokens:
        raise ConfigurationError(f"{first.path} and {second.path} have different tokens and cannot be compared")
    if not windows:
        raise ConfigurationError("there are no two tokens to compare the models on")
    divergence, agree = [], []
    done = 0
    for window in windows:
        both = zip(first.log_probabilities(window), second.log_probabilities(window), strict=True)
        for (_, p), (_, q) in both:
            log_p, log_q = p.double(), q.double()
            with torch.inference_mode():
                terms = log_p.exp() * (log_p - log_q)
            divergence.append(terms.nan_to_num().sum(1).clamp_min(0).numpy())
            agree.append((p.argmax(1) == q.argmax(1)).numpy())
        done += len(window)
        progress(done)
    return Comparison(np.concatenate(divergence), np.concatenate(agree))
