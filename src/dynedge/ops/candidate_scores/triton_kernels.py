"""Triton kernels of candidate_scores: one program per event."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _last_update(k, slot, valid, starts, events):
    """Last event before k that updated the item of each slot; −1 if there is none. Binary search, in lockstep."""
    is_updated = valid & (slot >= 0)
    low = tl.load(starts + slot, mask=is_updated, other=0)
    high = tl.load(starts + slot + 1, mask=is_updated, other=0)
    first = low
    while tl.max(high - low, 0) > 0:
        middle = (low + high) // 2
        before = tl.load(events + middle, mask=low < high, other=0) < k
        low, high = tl.where((low < high) & before, middle + 1, low), tl.where((low < high) & ~before, middle, high)
    return tl.load(events + low - 1, mask=is_updated & (low > first), other=-1)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["xi"])
def score_candidates(
    out,
    query,
    candidates,
    xi,
    psi,
    psi_row,
    stored,
    has_stored,
    arena,
    id_embeddings,
    slots,
    starts,
    events,
    row_after,
    decay,
    count,
    d: tl.constexpr,
    DECAYING: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    HAS_IDS: tl.constexpr,
):
    """Scores of event k's candidates, BC at a time. Legend: as in the package."""
    k = tl.program_id(0).to(tl.int64)
    WIDTH: tl.constexpr = 2 * d if HAS_IDS else d
    col = tl.arange(0, BK)[None, :]
    q = tl.load(query + k * WIDTH + col, mask=col < d, other=0.0)
    q_id = tl.load(query + k * WIDTH + WIDTH - d + col, mask=col < d, other=0.0)
    decays = (col >= d - DECAYING) & (col < d)
    shift = tl.load(decay + k * DECAYING + col - (d - DECAYING), mask=decays, other=0.0)
    for low in range(0, count, BC):
        c = low + tl.arange(0, BC)
        valid = c < count
        item = tl.load(candidates + k * count + c, mask=valid, other=0)
        slot = tl.load(slots + item, mask=valid, other=-1)
        event = _last_update(k, slot, valid, starts, events)
        arena_row = tl.load(row_after + event, mask=event >= 0, other=-1).to(tl.int64)
        is_stored = tl.load(has_stored + item, mask=valid, other=0) != 0
        psi_of = tl.load(psi_row + item, mask=valid & ~is_stored, other=-1)
        start = tl.where(is_stored, stored + item * d, tl.where(psi_of >= 0, psi + psi_of * d, xi + 0 * item))
        vector = tl.where(event >= 0, arena + arena_row * d, start)
        mask = valid[:, None] & (col < d)
        state = tl.load(vector[:, None] + col, mask=mask, other=0.0)
        state = tl.where(decays & mask, tl.exp2(state - shift), state)
        scores = tl.sum(q * state, 1)
        if HAS_IDS:
            vector = id_embeddings + item * (d + 1)
            scores += tl.sum(q_id * tl.load(vector[:, None] + col, mask=mask, other=0.0), 1)
            scores += tl.load(vector + d, mask=valid, other=0.0)
        tl.store(out + k * count + c, scores, mask=valid)
