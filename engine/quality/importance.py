"""Collecting an importance matrix: the mean square of what enters every input channel (spec/artifact.md §2.8)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from engine.artifact.convert.importance import ImportanceMatrix
from engine.model.weights import AttentionWeights, DenseWeights, LayerWeights
from engine.quality.subject import Subject

Names = tuple[str, ...]


class _Squares(TorchFunctionMode):
    """While active, adds up the squares of what every known weight is multiplied with."""

    def __init__(self, names: Mapping[int, Names]) -> None:
        super().__init__()
        self._names = names
        self.sums: dict[Names, torch.Tensor] = {}
        self.counts: dict[Names, int] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is functional.linear:
            columns, weight = args[0], args[1]
            names = self._names.get(weight.data_ptr())
            if names is not None:
                squares = columns.to(torch.float64).square().reshape(-1, columns.shape[-1])
                self.sums[names] = self.sums.get(names, 0) + squares.sum(0)
                self.counts[names] = self.counts.get(names, 0) + squares.shape[0]
        return func(*args, **(kwargs or {}))


def collect(
    subject: Subject,
    windows: Iterable[Sequence[int]],
    source: str,
    progress: Callable[[int], None] = lambda tokens: None,
) -> ImportanceMatrix:
    """Run `subject` over windows of token ids, each from empty state, and average over all their tokens.

    Covers the projections of the text layers, except the two small ones that give the DeltaNet its gates. An expert's
    vectors are means over the tokens routed to it; one that no token reached is not covered. `source` goes into the
    file. `progress` is called with the tokens read so far.
    """
    mode = _Squares(_names(subject))
    done = 0
    for window in windows:
        with mode:
            subject.hidden(window)
        done += len(window)
        progress(done)
    vectors = {
        name: np.asarray((mode.sums[names] / mode.counts[names]).to(torch.float32))
        for names in mode.sums
        for name in names
    }
    return ImportanceMatrix(dict(sorted(vectors.items())), source)


def _names(subject: Subject) -> dict[int, Names]:
    """Parameters that each weight holds the rows of, by the weight's address."""
    names: dict[int, Names] = {}
    for index, layer in enumerate(subject.model.weights.layers):
        for weight, parts in _parts(layer):
            names[weight.data_ptr()] = tuple(f"text/layers/{index}/{part}" for part in parts)
    return names


def _parts(layer: LayerWeights) -> Iterable[tuple[torch.Tensor, Names]]:
    mixer, network = layer.mixer, layer.feed_forward
    if isinstance(mixer, AttentionWeights):
        yield mixer.projection, tuple(f"attention/{part}" for part in ("query", "key", "gate", "value"))
        yield mixer.output, ("attention/output",)
    else:
        yield mixer.projection, tuple(f"gdn/{part}" for part in ("query", "key", "value", "z"))
        yield mixer.output, ("gdn/output",)
    if isinstance(network, DenseWeights):
        yield network.gate_up, ("mlp/gate", "mlp/up")
        yield network.down, ("mlp/down",)
        return
    for expert, (gate_up, down) in enumerate(zip(network.gate_up, network.down, strict=True)):
        yield gate_up, (f"moe/experts/{expert}/gate", f"moe/experts/{expert}/up")
        yield down, (f"moe/experts/{expert}/down",)
    yield network.shared_gate_up, ("moe/shared/gate", "moe/shared/up")
    yield network.shared_down, ("moe/shared/down",)
