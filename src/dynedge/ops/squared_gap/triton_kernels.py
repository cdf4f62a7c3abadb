"""Triton kernels of squared_gap."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count", "weight"])
def sums(a, b, partial, count, weight, D: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """partial [2, programs]: each program's part of weight / 2 · Σ (a − b)², and of the mean distance."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    squares = tl.zeros([BM], tl.float32)
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        place, mask = row.to(tl.int64)[:, None] * D + col, (row < count)[:, None] & (col < D)
        gap = tl.load(a + place, mask=mask, other=0.0) - tl.load(b + place, mask=mask, other=0.0)
        squares += tl.sum(gap * gap, 1)
    tl.store(partial + tl.program_id(0), weight / 2 * tl.sum(squares, 0))
    tl.store(partial + tl.num_programs(0) + tl.program_id(0), tl.sum(tl.sqrt(squares), 0) / count)


@triton.jit(do_not_specialize=["count", "weight"])
def gradients(a, b, grad, grads, count, weight, D: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    """grads [2, count, D]: of a and of b."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    factor = weight * tl.load(grad)
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        place, mask = row.to(tl.int64)[:, None] * D + col, (row < count)[:, None] & (col < D)
        gap = tl.load(a + place, mask=mask, other=0.0) - tl.load(b + place, mask=mask, other=0.0)
        tl.store(grads + place, factor * gap, mask=mask)
        tl.store(grads + (count + 0).to(tl.int64) * D + place, 0 - factor * gap, mask=mask)
