"""Mixture of experts: routing and the sparse feed-forward layer."""

from kernels.moe.reference import mixture_of_experts, route

__all__ = ["mixture_of_experts", "route"]
