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


@triton.jit
def _float32(address):
    return address.to(tl.pointer_type(tl.float32))


@triton.jit
def dense_steps(
    table,
    blocks,
    grads,
    scale,
    corrections,
    MAX_STEPS: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
    BM: tl.constexpr,
):
    """One step of all whole parameters.

    table int64[parameters, 7]: addresses of a parameter's value, moments, step count t and learning rate; then where
    its gradient starts in `grads`, and its size. blocks int32[programs, 2]: a program's parameter and block in it.
    """
    row = table + 7 * tl.load(blocks + 2 * tl.program_id(0))
    i = tl.load(blocks + 2 * tl.program_id(0) + 1) * BM + tl.arange(0, BM)
    valid = i < tl.load(row + 6)
    steps = tl.load(tl.load(row + 3).to(tl.pointer_type(tl.int64)))
    lr = tl.load(row + 4).to(tl.pointer_type(tl.float64))
    rate, square_scale = _corrected_rates(steps + tl.zeros([1], tl.int64), lr, corrections, MAX_STEPS)
    g = tl.load(scale).to(tl.float32) * tl.load(grads + tl.load(row + 5) + i, mask=valid, other=0.0)
    value, mean, square = _float32(tl.load(row)), _float32(tl.load(row + 1)), _float32(tl.load(row + 2))
    _update(value, mean, square, g, i, valid, rate, square_scale, BETA1, BETA2, EPSILON)


@triton.jit(do_not_specialize=["count", "offset"], do_not_specialize_on_alignment=["rows", "keys"])
def table_keys(rows, keys, count, offset, BM: tl.constexpr):
    """keys of a table's rows among those of several tables: those of no row (−1) come first."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    row = tl.maximum(tl.load(rows + i, mask=i < count, other=0), -1)
    tl.store(keys + i, (row + 1 + offset).to(tl.int32), mask=i < count)


@triton.jit(do_not_specialize=["count", "offset"], do_not_specialize_on_alignment=["rows", "keys", "sums"])
def table_rows(keys, rows, sums, count, offset, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr):
    """The inverse of table_keys for sorted keys; the sum of those of no row, the first one then, becomes zero."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    tl.store(rows + i, tl.load(keys + i, mask=i < count, other=0).to(tl.int64) - offset - 1, mask=i < count)
    if tl.program_id(0) == 0:
        col = tl.arange(0, BD)
        is_no_row = tl.load(keys + tl.zeros([BD], tl.int32)) == offset
        tl.store(sums + col, tl.zeros([BD], tl.float32), mask=(col < D) & is_no_row)


@triton.jit(do_not_specialize=["count", "max_norm", "more"], do_not_specialize_on_alignment=["scale"])
def clip_scale(norms, total, scale, count, max_norm, more, BM: tl.constexpr):
    """total: `more` plus the sum of the squares of norms; scale: min(1, max_norm / √total). float64."""
    squares = tl.zeros([BM], tl.float64)
    for low in range(0, count, BM):
        i = low + tl.arange(0, BM)
        norm = tl.load(norms + i, mask=i < count, other=0.0).to(tl.float64)
        squares += norm * norm
    square = more + tl.sum(squares, 0)
    tl.store(total, square)
    limit = max_norm / (tl.sqrt(square) + 1e-6)
    tl.store(scale, tl.where(limit >= 1.0, 1.0, limit))  # not a number if the norm is none
