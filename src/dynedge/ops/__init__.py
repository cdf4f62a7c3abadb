"""Operators: one folder each, with a reference implementation in plain PyTorch, and numba and Triton kernels."""
