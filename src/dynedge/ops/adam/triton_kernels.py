"""Triton kernels of adam: each number of a touched row is read, updated and written in one pass."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _corrected_rates(step, lr, corrections, MAX_STEPS: tl.constexpr):
    """lr / (1 − β1^t) and 1 / (1 − β2^t) of step t."""
    step = tl.minimum(step, MAX_STEPS - 1)
    return tl.load(lr).to(tl.float32) * tl.load(corrections + step), tl.load(corrections + MAX_STEPS + step)


@triton.jit
def _update(
    value,
    mean,
    square,
    g,
    offset,
    mask,
    rate,
    square_scale,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
):
    """One step of the numbers at `offset`, whose gradients are g."""
    m = tl.load(mean + offset, mask=mask, other=0.0)
    m += (1 - BETA1) * (g - m)
    v = tl.load(square + offset, mask=mask, other=0.0)
    v = BETA2 * v + (1 - BETA2) * g * g
    tl.store(mean + offset, m, mask=mask)
    tl.store(square + offset, v, mask=mask)
    updated = tl.load(value + offset, mask=mask, other=0.0) - rate * m / (tl.sqrt(v * square_scale) + EPSILON)
    tl.store(value + offset, updated, mask=mask)


@triton.jit(do_not_specialize=["count"])
def row_step(
    value,
    keys,
    grad,
    mean,
    square,
    steps,
    scale,
    corrections,
    count,
    lr,
    MAX_STEPS: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TAIL: tl.constexpr,
):
    """One step of the rows `keys`; of adjacent equal keys only the first counts, and negative ones are skipped."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    valid = i < count
    key = tl.load(keys + i, mask=valid, other=-1).to(tl.int64)
    previous = tl.load(keys + i - 1, mask=valid & (i > 0), other=-2).to(tl.int64)
    head = valid & (key != previous) & (key >= 0)
    step = tl.load(steps + key, mask=head, other=0) + 1
    tl.debug_barrier()  # several warps read the same row's count: none may see it incremented
    tl.store(steps + key, step, mask=head)
    rate, square_scale = _corrected_rates(step, lr, corrections, MAX_STEPS)
    factor = tl.load(scale).to(tl.float32)
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK if k + BK <= D else TAIL)[None, :]
        mask = head[:, None] & (col < D)
        offset = key[:, None] * D + col
        g = factor * tl.load(grad + i.to(tl.int64)[:, None] * D + col, mask=mask, other=0.0)
        _update(value, mean, square, g, offset, mask, rate[:, None], square_scale[:, None], BETA1, BETA2, EPSILON)


@triton.jit(do_not_specialize=["count"])
def dense_step(
    value,
    grad,
    mean,
    square,
    scale,
    corrections,
    steps,
    count,
    lr,
    MAX_STEPS: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
    BM: tl.constexpr,
):
    """One step of a whole parameter; `steps` is t."""
    rate, square_scale = _corrected_rates(tl.load(steps) + tl.zeros([1], tl.int64), lr, corrections, MAX_STEPS)
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    valid = i < count
    g = tl.load(scale).to(tl.float32) * tl.load(grad + i, mask=valid, other=0.0).to(tl.float32)
    _update(value, mean, square, g, i, valid, rate, square_scale, BETA1, BETA2, EPSILON)
