"""all_scores on a GPU: all items as they are at the window's start, then the scores of those that had moved by then.

A score is added up the same way in both kernels, d by d, so that its bits do not tell which of them it came from.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _scores(
    wanted,
    vectors,
    ids,
    k,
    row,
    item,
    mine,
    there,
    d: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    IDS: tl.constexpr,
):
    """[BM, BN]: of events k with rows of a table of vectors, and with the ids of their items."""
    WIDTH: tl.constexpr = 2 * d if IDS else d
    found = tl.zeros([BM, BN], tl.float32)
    for low in tl.static_range(0, d, BK):
        across = low + tl.arange(0, BK)[None, :]
        along = low + tl.arange(0, BK)[:, None]
        left, right = mine[:, None] & (across < d), there[None, :] & (along < d)
        q = tl.load(wanted + k[:, None] * WIDTH + across, mask=left, other=0.0)
        v = tl.load(vectors + row[None, :] * d + along, mask=right, other=0.0)
        found += tl.dot(q, v, input_precision="ieee")
        if IDS:
            q = tl.load(wanted + k[:, None] * WIDTH + d + across, mask=left, other=0.0)
            v = tl.load(ids + item[None, :] * (d + 1) + along, mask=right, other=0.0)
            found += tl.dot(q, v, input_precision="ieee")
    if IDS:
        found += tl.load(ids + item * (d + 1) + d, mask=there, other=0.0)[None, :]
    return found


@triton.jit(do_not_specialize=["n", "items"])
def at_start(
    out,
    wanted,
    states,
    ids,
    n,
    items,
    d: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    IDS: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)  # first: there may be more of them than of the second
    k = tl.program_id(1).to(tl.int64) * BM + tl.arange(0, BM)
    found = _scores(wanted, states, ids, k, i, i, k < n, i < items, d, BM, BN, BK, IDS)
    tl.store(out + k[:, None] * items + i[None, :], found, mask=(k < n)[:, None] & (i < items)[None, :])


@triton.jit(do_not_specialize=["n", "items"])
def moved(
    out,
    wanted,
    arena,
    ids,
    item,
    row,
    until,
    n,
    items,
    d: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    IDS: tl.constexpr,
):
    """Event e's item has the state arena[row[e]] for the events after e up to until[e]."""
    e = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    k = tl.program_id(1).to(tl.int64) * BM + tl.arange(0, BM)
    if tl.program_id(0) * BN < (tl.program_id(1) + 1) * BM:
        of = tl.load(item + e, mask=e < n, other=0).to(tl.int64)
        at = tl.load(row + e, mask=e < n, other=-1).to(tl.int64)
        last = tl.load(until + e, mask=e < n, other=-1)
        reads = (e[None, :] < k[:, None]) & (k[:, None] <= last[None, :]) & (at >= 0)[None, :] & (k < n)[:, None]
        found = _scores(wanted, arena, ids, k, at, of, k < n, at >= 0, d, BM, BN, BK, IDS)
        tl.store(out + k[:, None] * items + of[None, :], found, mask=reads)
