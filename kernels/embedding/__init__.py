"""Token embedding rows."""

from kernels.embedding.reference import embedding

__all__ = ["embedding"]
