"""candidate_scores on a GPU: an event a program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _last_move(k, slot, there, starts, events):
    """The last event before k that moved the item of each slot; −1: none did. By bisection, in step for all."""
    moved = there & (slot >= 0)
    low = tl.load(starts + slot, mask=moved, other=0)
    high = tl.load(starts + slot + 1, mask=moved, other=0)
    first = low
    while tl.max(high - low, 0) > 0:
        middle = (low + high) // 2
        before = tl.load(events + middle, mask=low < high, other=0) < k
        low, high = tl.where((low < high) & before, middle + 1, low), tl.where((low < high) & ~before, middle, high)
    return tl.load(events + low - 1, mask=moved & (low > first), other=-1)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["xi"])
def scores(
    out,
    wanted,
    candidates,
    xi,
    psi,
    psi_row,
    stored,
    moved,
    arena,
    ids,
    slots,
    starts,
    events,
    row,
    count,
    d: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    IDS: tl.constexpr,
):
    k = tl.program_id(0).to(tl.int64)
    WIDTH: tl.constexpr = 2 * d if IDS else d
    col = tl.arange(0, BK)[None, :]
    q = tl.load(wanted + k * WIDTH + col, mask=col < d, other=0.0)
    q_id = tl.load(wanted + k * WIDTH + WIDTH - d + col, mask=col < d, other=0.0)
    for low in range(0, count, BC):
        c = low + tl.arange(0, BC)
        there = c < count
        item = tl.load(candidates + k * count + c, mask=there, other=0)
        slot = tl.load(slots + item, mask=there, other=-1)
        event = _last_move(k, slot, there, starts, events)
        at = tl.load(row + event, mask=event >= 0, other=-1).to(tl.int64)
        own = tl.load(moved + item, mask=there, other=0) != 0
        of = tl.load(psi_row + item, mask=there & ~own, other=-1)
        start = tl.where(own, stored + item * d, tl.where(of >= 0, psi + of * d, xi + 0 * item))
        vector = tl.where(event >= 0, arena + at * d, start)
        inside = there[:, None] & (col < d)
        found = tl.sum(q * tl.load(vector[:, None] + col, mask=inside, other=0.0), 1)
        if IDS:
            vector = ids + item * (d + 1)
            found += tl.sum(q_id * tl.load(vector[:, None] + col, mask=inside, other=0.0), 1)
            found += tl.load(vector + d, mask=there, other=0.0)
        tl.store(out + k * count + c, found, mask=there)
