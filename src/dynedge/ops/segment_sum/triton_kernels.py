"""Sums of rows by sorted key, without atomics: first inside blocks of positions, then across them.

A key's rows stand together. In a block, the first of them gets the sum of those in the block; then the first of all
adds what it finds at the starts of the following blocks, as long as the key is its own. A key with ten thousand rows
so takes a few hundred reads in a row, not ten thousand. Keys below 0 are nobody's.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _within(values, row, key, same, part, i, head, k, D: tl.constexpr, BK: tl.constexpr):
    """CandidateColumns k to k + BK − 1."""
    col = k + tl.arange(0, BK)[None, :]
    value = tl.load(values + row + col, mask=(key >= 0)[:, None] & (col < D), other=0.0).to(tl.float32)
    total = tl.dot(same, value, input_precision="ieee")
    tl.store(part + i.to(tl.int64)[:, None] * D + col, total, mask=head[:, None] & (col < D))


@triton.jit(do_not_specialize=["count"])
def within(
    values, source, keys, part, count, stride, D: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, TAIL: tl.constexpr
):
    """part [N, d]: at the first position of each key in a block, the sum over the block. Others are not written."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    there = i < count
    key = tl.load(keys + i, mask=there, other=-1)
    before = tl.load(keys + i - 1, mask=there & (tl.arange(0, BM) > 0), other=-9)
    head = there & (key != before) & (key >= 0)
    row = tl.load(source + i, mask=there, other=0).to(tl.int64)[:, None] * stride
    same = ((key[:, None] == key[None, :]) & head[:, None] & there[None, :]).to(tl.float32)
    for k in tl.static_range(0, D, BK):
        _within(values, row, key, same, part, i, head, k, D, BK if k + BK <= D else TAIL)


@triton.jit
def _across(
    part,
    keys,
    out,
    count,
    i,
    there,
    key,
    head,
    ends,
    last,
    k,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    BY_KEY: tl.constexpr,
):
    """CandidateColumns k to k + BK − 1."""
    col = k + tl.arange(0, BK)[None, :]
    total = tl.load(part + i.to(tl.int64)[:, None] * D + col, mask=head[:, None] & (col < D), other=0.0)
    more = tl.zeros([BK], tl.float32)
    block, again = tl.program_id(0) + 1, tl.max(ends.to(tl.int32), 0) > 0
    while again:
        at = (block + tl.arange(0, BM)).to(tl.int64) * BM
        mine = tl.load(keys + at, mask=at < count, other=-1) == last
        found = tl.load(part + at[:, None] * D + col, mask=mine[:, None] & (col < D), other=0.0)
        more += tl.sum(found, 0)
        block += BM
        again = tl.min(mine.to(tl.int32), 0) > 0
    total += tl.where(ends[:, None], more[None, :], 0.0)
    if BY_KEY:
        tl.store(out + key.to(tl.int64)[:, None] * D + col, total, mask=head[:, None] & (col < D))
    else:
        tl.store(out + i.to(tl.int64)[:, None] * D + col, total, mask=there[:, None] & (col < D))


@triton.jit(do_not_specialize=["count"])
def across(
    part,
    keys,
    out,
    count,
    D: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    TAIL: tl.constexpr,
    BY_KEY: tl.constexpr,
):
    """The whole sums: out[key] if BY_KEY; else at each key's first position, and nought at all others."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    there = i < count
    key = tl.load(keys + i, mask=there, other=-1)
    before = tl.load(keys + i - 1, mask=there & (i > 0), other=-9)
    head = there & (key != before) & (key >= 0)
    last = tl.max(key, 0)
    ends = head & (key == last)  # the one key that may go on in the next block, if it started in this one
    for k in tl.static_range(0, D, BK):
        _across(
            *(part, keys, out, count, i, there, key, head, ends, last, k),
            D=D,
            BM=BM,
            BK=BK if k + BK <= D else TAIL,
            BY_KEY=BY_KEY,
        )
