"""adam on a GPU: each number of a touched row is read, moved and written in one pass."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rates(age, lr, corrections, AGES: tl.constexpr):
    """At age t: lr / (1 − β1^t), and 1 / (1 − β2^t)."""
    age = tl.minimum(age, AGES - 1)
    return tl.load(lr).to(tl.float32) * tl.load(corrections + age), tl.load(corrections + AGES + age)


@triton.jit
def _move(
    value, mean, square, g, at, mask, own, young, BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr
):
    """A step of the numbers at `at`, whose gradients are g."""
    m = tl.load(mean + at, mask=mask, other=0.0)
    m += (1 - BETA1) * (g - m)
    v = tl.load(square + at, mask=mask, other=0.0)
    v = BETA2 * v + (1 - BETA2) * g * g
    tl.store(mean + at, m, mask=mask)
    tl.store(square + at, v, mask=mask)
    moved = tl.load(value + at, mask=mask, other=0.0) - own * m / (tl.sqrt(v * young) + EPSILON)
    tl.store(value + at, moved, mask=mask)


@triton.jit(do_not_specialize=["count"])
def rows(
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
    AGES: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TAIL: tl.constexpr,
):
    """A step of the rows `keys`; equal ones stand together: the first counts, and those below 0 do not."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    there = i < count
    key = tl.load(keys + i, mask=there, other=-1).to(tl.int64)
    before = tl.load(keys + i - 1, mask=there & (i > 0), other=-2).to(tl.int64)
    head = there & (key != before) & (key >= 0)
    step = tl.load(steps + key, mask=head, other=0) + 1
    tl.debug_barrier()  # several warps read the same row's: none may count twice
    tl.store(steps + key, step, mask=head)
    own, young = _rates(step, lr, corrections, AGES)
    factor = tl.load(scale).to(tl.float32)
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK if k + BK <= D else TAIL)[None, :]
        mask = head[:, None] & (col < D)
        at = key[:, None] * D + col
        g = factor * tl.load(grad + i.to(tl.int64)[:, None] * D + col, mask=mask, other=0.0)
        _move(value, mean, square, g, at, mask, own[:, None], young[:, None], BETA1, BETA2, EPSILON)


@triton.jit(do_not_specialize=["count"])
def dense(
    value,
    grad,
    mean,
    square,
    scale,
    corrections,
    steps,
    count,
    lr,
    AGES: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
    BM: tl.constexpr,
):
    """A step of a whole parameter, its number `steps`."""
    own, young = _rates(tl.load(steps) + tl.zeros([1], tl.int64), lr, corrections, AGES)
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    there = i < count
    g = tl.load(scale).to(tl.float32) * tl.load(grad + i, mask=there, other=0.0).to(tl.float32)
    _move(value, mean, square, g, i, there, own, young, BETA1, BETA2, EPSILON)
