"""Triton kernels of segment_sum: sums by sorted key without atomics, first inside blocks of positions, then across.

The rows of a key are adjacent. In a block, the first of them gets the sum of those in the block; then the first of
all adds the sums at the starts of the following blocks, as long as they have its key. A key with ten thousand rows
takes a few hundred dependent reads, not ten thousand. Negative keys are skipped.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _columns_within(values, row, key, same, partial, i, head, k, D: tl.constexpr, BK: tl.constexpr):
    """CandidateColumns k to k + BK − 1."""
    col = k + tl.arange(0, BK)[None, :]
    value = tl.load(values + row + col, mask=(key >= 0)[:, None] & (col < D), other=0.0).to(tl.float32)
    total = tl.dot(same, value, input_precision="ieee")
    tl.store(partial + i.to(tl.int64)[:, None] * D + col, total, mask=head[:, None] & (col < D))


@triton.jit(do_not_specialize=["count"])
def sum_within_blocks(
    values,
    source,
    keys,
    partial,
    count,
    stride,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TAIL: tl.constexpr,
):
    """partial [N, d]: each key's sum over a block, at its first position there; other rows are not written."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    valid = i < count
    key = tl.load(keys + i, mask=valid, other=-1)
    previous = tl.load(keys + i - 1, mask=valid & (tl.arange(0, BM) > 0), other=-9)
    head = valid & (key != previous) & (key >= 0)
    row = tl.load(source + i, mask=valid, other=0).to(tl.int64)[:, None] * stride
    same = ((key[:, None] == key[None, :]) & head[:, None] & valid[None, :]).to(tl.float32)
    for k in tl.static_range(0, D, BK):
        _columns_within(values, row, key, same, partial, i, head, k, D, BK if k + BK <= D else TAIL)


@triton.jit
def _columns_across(
    partial,
    keys,
    out,
    count,
    i,
    valid,
    key,
    head,
    may_continue,
    last,
    k,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    BY_KEY: tl.constexpr,
):
    """CandidateColumns k to k + BK − 1."""
    col = k + tl.arange(0, BK)[None, :]
    total = tl.load(partial + i.to(tl.int64)[:, None] * D + col, mask=head[:, None] & (col < D), other=0.0)
    continued = tl.zeros([BK], tl.float32)
    block, continues = tl.program_id(0) + 1, tl.max(may_continue.to(tl.int32), 0) > 0
    while continues:
        at = (block + tl.arange(0, BM)).to(tl.int64) * BM
        same_key = tl.load(keys + at, mask=at < count, other=-1) == last
        sums = tl.load(partial + at[:, None] * D + col, mask=same_key[:, None] & (col < D), other=0.0)
        continued += tl.sum(sums, 0)
        block += BM
        continues = tl.min(same_key.to(tl.int32), 0) > 0
    total += tl.where(may_continue[:, None], continued[None, :], 0.0)
    if BY_KEY:
        tl.store(out + key.to(tl.int64)[:, None] * D + col, total, mask=head[:, None] & (col < D))
    else:
        tl.store(out + i.to(tl.int64)[:, None] * D + col, total, mask=valid[:, None] & (col < D))


@triton.jit(do_not_specialize=["count"])
def sum_across_blocks(
    partial,
    keys,
    out,
    count,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TAIL: tl.constexpr,
    BY_KEY: tl.constexpr,
):
    """Fills out with the total sums: out[key] if BY_KEY, else at each key's first position, and zeros elsewhere."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    valid = i < count
    key = tl.load(keys + i, mask=valid, other=-1)
    previous = tl.load(keys + i - 1, mask=valid & (i > 0), other=-9)
    head = valid & (key != previous) & (key >= 0)
    last = tl.max(key, 0)
    may_continue = head & (key == last)  # the one key that may continue in the next block and starts in this one
    for k in tl.static_range(0, D, BK):
        _columns_across(
            *(partial, keys, out, count, i, valid, key, head, may_continue, last, k),
            D=D,
            BM=BM,
            BK=BK if k + BK <= D else TAIL,
            BY_KEY=BY_KEY,
        )
