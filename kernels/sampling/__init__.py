"""Penalties, candidates, the draw and log-probabilities."""

from kernels.sampling.reference import (
    MAX_CANDIDATES,
    PURPOSE_ACCEPT,
    PURPOSE_BONUS,
    PURPOSE_CORRECTION,
    PURPOSE_DECODE,
    PURPOSE_PREFILL,
    SamplingRows,
    allow,
    best,
    log_probabilities,
    penalise,
    sample,
    uniform,
)

__all__ = [
    "MAX_CANDIDATES",
    "PURPOSE_ACCEPT",
    "PURPOSE_BONUS",
    "PURPOSE_CORRECTION",
    "PURPOSE_DECODE",
    "PURPOSE_PREFILL",
    "SamplingRows",
    "allow",
    "best",
    "log_probabilities",
    "penalise",
    "sample",
    "uniform",
]
