"""Numba kernels of gather_linear. Each computes one part of `parts`; no two parts write the same number."""

from __future__ import annotations

import numpy as np

from dynedge.ops.gather_matmul import add_matmul, add_outer
from dynedge.ops.thread_pool import part_of_range
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

CHUNK = 32  # rows computed together, while they are in the cache


@compiled
def add_matmul_rows(part: int, parts: int, out: Array, x: Array, index: Array, w: Array) -> None:
    """out[k] += x[index[k]] @ w, w [c, o]."""
    start, stop = part_of_range(0, len(index), part, parts)
    for low in range(start, stop, CHUNK):
        high = min(low + CHUNK, stop)
        add_matmul(out, 0, np.arange(low, high), x, 0, index[low:high], high - low, w)


@compiled
def add_outer_rows(part: int, parts: int, out: Array, grad: Array, x: Array, index: Array) -> None:
    """out += grad.T @ x[index], this part's rows of out; out [o, c], grad [n, o]."""
    quads = (grad.shape[1] + 3) // 4
    first, last = part_of_range(0, quads, part, parts)
    first, last = 4 * first, min(4 * last, grad.shape[1])
    for low in range(0, len(index), CHUNK):
        high = min(low + CHUNK, len(index))
        add_outer(out, first, last, grad, 0, np.arange(low, high), x, index[low:high])


@compiled
def transposed(w: Array) -> Array:
    """w.T, C-contiguous, copied in squares of 16 × 16: a column at a time would miss the cache."""
    height, width = w.shape
    out = np.empty((width, height), w.dtype)
    for top in range(0, height, 16):
        for left in range(0, width, 16):
            for j in range(left, min(left + 16, width)):
                for i in range(top, min(top + 16, height)):
                    out[j, i] = w[i, j]
    return out


@compiled
def fill_bias(out: Array, bias: Array) -> None:
    """out[k] = bias"""
    for k in range(len(out)):
        for j in range(out.shape[1]):
            out[k, j] = bias[j]


@compiled
def gather_add(part: int, parts: int, out: Array, x: Array, index: Array) -> None:
    """out[k] += x[index[k]]"""
    start, stop = part_of_range(0, len(index), part, parts)
    for k in range(start, stop):
        target, source = out[k], x[index[k]]
        for j in range(len(target)):
            target[j] += source[j]


@compiled
def scatter_add(part: int, parts: int, out: Array, x: Array, index: Array) -> None:
    """out[index[k]] += x[k], in order, this part's columns."""
    first, last = part_of_range(0, x.shape[1], part, parts)
    for k in range(len(index)):
        target, source = out[index[k], first:last], x[k, first:last]
        for j in range(len(target)):
            target[j] += source[j]


@compiled
def relu_in_place(out: Array) -> None:
    """ReLU in place. A NaN stays a NaN."""
    for k in range(len(out)):
        for j in range(out.shape[1]):
            out[k, j] = out.dtype.type(0) if out[k, j] < 0 else out[k, j]


@compiled
def relu_backward(grad: Array, out: Array, relu: bool, pre_relu: Array, bias: Array) -> None:
    """Fills pre_relu with the gradient before ReLU; bias += its sum over rows, summed CHUNK rows at a time."""
    partial = np.empty_like(bias)
    for low in range(0, len(grad), CHUNK):
        partial[:] = 0
        for k in range(low, min(low + CHUNK, len(grad))):
            for j in range(len(bias)):
                value = grad[k, j]
                if relu and not out[k, j] > 0:
                    value = grad.dtype.type(0)
                pre_relu[k, j] = value
                partial[j] += value
        for j in range(len(bias)):
            bias[j] += partial[j]
