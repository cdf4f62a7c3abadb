"""Operators: one folder each, with a reference implementation in plain PyTorch, and numba and Triton kernels.

Terms that several operators share. Arena: the table of all states of a window; first its roots, which the window only
reads (entry states, ψ, φ), then the states it writes, in level order. Own and other parent of a written state: the
previous states of its entity and of the entity on the other side of the event.
"""
