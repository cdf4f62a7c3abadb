"""Products of named rows, compiled. Every kernel does one part of `parts`; no two parts write the same number."""

from __future__ import annotations

import numpy as np

from dynedge.ops.gather_matmul import add_outer, add_products
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

CHUNK = 32  # rows done together, while they are near


@compiled
def share(total: int, part: int, parts: int) -> tuple[int, int]:
    """One part of a range."""
    return total * part // parts, total * (part + 1) // parts


@compiled
def add_rows(part: int, parts: int, out: Array, x: Array, index: Array, w: Array) -> None:
    """out[k] += x[index[k]] @ w, w [c, o]."""
    start, stop = share(len(index), part, parts)
    for low in range(start, stop, CHUNK):
        high = min(low + CHUNK, stop)
        add_products(out, 0, np.arange(low, high), x, 0, index[low:high], high - low, w)


@compiled
def add_outers(part: int, parts: int, out: Array, grad: Array, x: Array, index: Array) -> None:
    """out += grad.T @ x[index], some of its rows; out [o, c], grad [n, o]."""
    quads = (grad.shape[1] + 3) // 4
    first, last = share(quads, part, parts)
    first, last = 4 * first, min(4 * last, grad.shape[1])
    for low in range(0, len(index), CHUNK):
        high = min(low + CHUNK, len(index))
        add_outer(out, first, last, grad, 0, np.arange(low, high), x, index[low:high])


@compiled
def turned(w: Array) -> Array:
    """w.T in C order, a square of 16 × 16 after the other: a column at a time would miss the cache."""
    height, width = w.shape
    out = np.empty((width, height), w.dtype)
    for top in range(0, height, 16):
        for left in range(0, width, 16):
            for j in range(left, min(left + 16, width)):
                for i in range(top, min(top + 16, height)):
                    out[j, i] = w[i, j]
    return out


@compiled
def begin(out: Array, bias: Array) -> None:
    for k in range(len(out)):
        for j in range(out.shape[1]):
            out[k, j] = bias[j]


@compiled
def gather_add(part: int, parts: int, out: Array, x: Array, index: Array) -> None:
    """out[k] += x[index[k]]"""
    start, stop = share(len(index), part, parts)
    for k in range(start, stop):
        to, of = out[k], x[index[k]]
        for j in range(len(to)):
            to[j] += of[j]


@compiled
def scatter_add(part: int, parts: int, out: Array, x: Array, index: Array) -> None:
    """out[index[k]] += x[k], in order, some of the columns."""
    first, last = share(x.shape[1], part, parts)
    for k in range(len(index)):
        to, of = out[index[k], first:last], x[k, first:last]
        for j in range(len(to)):
            to[j] += of[j]


@compiled
def keep_positive(out: Array) -> None:
    """relu, in place. A NaN stays one."""
    for k in range(len(out)):
        for j in range(out.shape[1]):
            out[k, j] = out.dtype.type(0) if out[k, j] < 0 else out[k, j]


@compiled
def turn(grad: Array, out: Array, relu: bool, turned: Array, bias: Array) -> None:
    """turned: the gradient before relu; bias += its sum over rows, 32 of them first by themselves."""
    some = np.empty_like(bias)
    for low in range(0, len(grad), CHUNK):
        some[:] = 0
        for k in range(low, min(low + CHUNK, len(grad))):
            for j in range(len(bias)):
                value = grad[k, j]
                if relu and not out[k, j] > 0:
                    value = grad.dtype.type(0)
                turned[k, j] = value
                some[j] += value
        for j in range(len(bias)):
            bias[j] += some[j]
