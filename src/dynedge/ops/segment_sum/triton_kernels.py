"""Triton kernels of segment_sum: sums by sorted key without atomics, first inside blocks of positions, then across.

The rows of a key are adjacent. A key whose rows are all in one block is summed there; of any other, the first row in
each block gets the sum of those in the block, and then the first of all adds the sums at the starts of the following
blocks, as long as they have its key. A key with ten thousand rows takes a few hundred dependent reads, not ten
thousand. Negative keys are skipped.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _keys_around(keys, count, BM: tl.constexpr):
    """The last key before this program's block and the first one after it; −9 where there is none."""
    start = tl.program_id(0) * BM
    before = tl.load(keys + start - 1, mask=start > 0, other=-9)
    return before, tl.load(keys + start + BM, mask=start + BM < count, other=-9)


@triton.jit
def _columns_within(
    values,
    row,
    key,
    same,
    partial,
    out,
    factor,
    i,
    written,
    complete,
    incomplete,
    k,
    D: tl.constexpr,
    BK: tl.constexpr,
    BY_KEY: tl.constexpr,
    ADD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Columns k to k + BK − 1."""
    col = k + tl.arange(0, BK)[None, :]
    value = tl.load(values + row + col, mask=(key >= 0)[:, None] & (col < D), other=0.0).to(tl.float32)
    total = tl.dot(same, value, input_precision=PRECISION)
    at = i.to(tl.int64)[:, None] * D + col
    tl.store(partial + at, total, mask=incomplete[:, None] & (col < D))
    if BY_KEY:
        target, mask = out + key.to(tl.int64)[:, None] * D + col, complete[:, None] & (col < D)
        total *= factor
        if ADD:
            total += tl.load(target, mask=mask, other=0.0)
        tl.store(target, total, mask=mask)
    else:
        total = tl.where(complete[:, None], factor * total, 0.0)
        tl.store(out + at, total, mask=written[:, None] & (col < D))


@triton.jit(do_not_specialize=["count"])
def sum_within_blocks(
    values,
    source,
    keys,
    partial,
    out,
    scale,
    count,
    stride,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TAIL: tl.constexpr,
    BY_KEY: tl.constexpr,
    ADD: tl.constexpr,
    HAS_SCALE: tl.constexpr,
):
    """Fills out for keys that are in one block only, else partial [N, d] at the key's first position in the block.

    out[key] if BY_KEY, to which ADD adds; else at each key's first position, and zeros elsewhere.
    """
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    valid = i < count
    key = tl.load(keys + i, mask=valid, other=-1)
    previous = tl.load(keys + i - 1, mask=valid & (tl.arange(0, BM) > 0), other=-9)
    before, after = _keys_around(keys, count, BM)
    head = valid & (key != previous) & (key >= 0)
    complete = head & (key != before) & (key != after)
    incomplete = head & (complete == 0)
    written = valid & ((incomplete == 0) | (key == before))
    row = tl.load(source + i, mask=valid, other=0).to(tl.int64)[:, None] * stride
    same = ((key[:, None] == key[None, :]) & head[:, None] & valid[None, :]).to(tl.float32)
    factor = 1.0
    if HAS_SCALE:
        factor = tl.load(scale).to(tl.float32)
    for k in tl.static_range(0, D, BK):
        _columns_within(
            *(values, row, key, same, partial, out, factor, i, written, complete, incomplete, k, D),
            BK if k + BK <= D else TAIL,
            BY_KEY,
            ADD,
            # Tensor cores: zeros, ones and bfloat16 numbers are exact, float32 numbers to 2^−21 in three parts.
            "tf32" if values.dtype.element_ty == tl.bfloat16 else "tf32x3",
        )


@triton.jit
def _columns_across(
    partial,
    keys,
    out,
    factor,
    count,
    at,
    last,
    k,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    BY_KEY: tl.constexpr,
    ADD: tl.constexpr,
):
    """Columns k to k + BK − 1."""
    col = k + tl.arange(0, BK)
    total = tl.load(partial + at.to(tl.int64) * D + col, mask=col < D, other=0.0)
    block, continues = tl.program_id(0) + 1, True
    while continues:
        first = (block + tl.arange(0, BM)).to(tl.int64) * BM
        same_key = tl.load(keys + first, mask=first < count, other=-1) == last
        mask = same_key[:, None] & (col < D)[None, :]
        total += tl.sum(tl.load(partial + first[:, None] * D + col[None, :], mask=mask, other=0.0), 0)
        block += BM
        continues = tl.min(same_key.to(tl.int32), 0) > 0
    if BY_KEY:
        total *= factor
        if ADD:
            total += tl.load(out + last.to(tl.int64) * D + col, mask=col < D, other=0.0)
        tl.store(out + last.to(tl.int64) * D + col, total, mask=col < D)
    else:
        tl.store(out + at.to(tl.int64) * D + col, factor * total, mask=col < D)


@triton.jit(do_not_specialize=["count"])
def sum_across_blocks(
    partial,
    keys,
    out,
    scale,
    count,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TAIL: tl.constexpr,
    BY_KEY: tl.constexpr,
    ADD: tl.constexpr,
    HAS_SCALE: tl.constexpr,
):
    """Fills out for the one key that starts in this program's block and continues in the next, if there is one."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    key = tl.load(keys + i, mask=i < count, other=-1)
    before, after = _keys_around(keys, count, BM)
    last = tl.max(key, 0)
    if (last == after) & (last != before) & (last >= 0):
        at = tl.min(tl.where(key == last, i, count), 0)
        factor = 1.0
        if HAS_SCALE:
            factor = tl.load(scale).to(tl.float32)
        for k in tl.static_range(0, D, BK):
            _columns_across(
                *(partial, keys, out, factor, count, at, last, k, D, BM), BK if k + BK <= D else TAIL, BY_KEY, ADD
            )


@triton.jit(do_not_specialize=["count"])
def add_readers(
    base,
    values,
    reader,
    out,
    scale,
    count,
    stride,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    HAS_BASE: tl.constexpr,
    HAS_SCALE: tl.constexpr,
):
    """out[row] = base[row] + scale · values[reader[row]]; a negative reader adds nothing."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    place = tl.load(reader + row, mask=row < count, other=-1).to(tl.int64)
    factor = 1.0
    if HAS_SCALE:
        factor = tl.load(scale).to(tl.float32)
    for k in tl.static_range(0, D, BK):
        col = k + tl.arange(0, BK)[None, :]
        mask = (row < count)[:, None] & (col < D)
        total = tl.load(values + place[:, None] * stride + col, mask=(place >= 0)[:, None] & (col < D), other=0.0)
        total = factor * total.to(tl.float32)
        if HAS_BASE:
            total += tl.load(base + row.to(tl.int64)[:, None] * D + col, mask=mask, other=0.0)
        tl.store(out + row.to(tl.int64)[:, None] * D + col, total, mask=mask)
