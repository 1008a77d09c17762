"""Tests of kernels against independent arithmetic."""
