"""Prefill chunks and decode rounds: the only places where tokens are made."""

from engine.rounds.decode import Column, decode
from engine.rounds.model import Batch, Model, Segment, Span
from engine.rounds.prefill import prefill
from engine.rounds.runtime import Runtime
from engine.rounds.sampling import Draw, Drawn, NotFiniteError, Sampler

__all__ = [
    "Batch",
    "Column",
    "Draw",
    "Drawn",
    "Model",
    "NotFiniteError",
    "Runtime",
    "Sampler",
    "Segment",
    "Span",
    "decode",
    "prefill",
]
