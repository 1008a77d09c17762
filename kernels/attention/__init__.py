"""Causal attention over a paged key-value cache."""

from kernels.attention.reference import PAGE_TOKENS, Rows, append, cache_rows, causal_attention, history

__all__ = ["PAGE_TOKENS", "Rows", "append", "cache_rows", "causal_attention", "history"]
