"""Explanations of scores: the sources of an item's probability, and the recent item that it is nearest to.

Legend: n items to explain, M sources (see scoring.py).
"""

from __future__ import annotations

import numpy as np

from dynedge.models.count_memory.candidates import CandidateBuffer, clear, collect_candidates
from dynedge.models.count_memory.contexts import (
    CONTEXT_SOURCES,
    FIRST_SOURCE,
    NEAR_DECAY,
    RECENT_ITEMS,
    ContextCounts,
    CountSettings,
)
from dynedge.models.count_memory.hash_table import COUNT, NONE, find_entry, find_row
from dynedge.models.count_memory.scoring import NetworkWeights, compute_gates
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

REASON_OF_CONTEXT = {
    "user": "history",
    "last": "followed",
    "last_two": "followed",
    "user_last": "followed",
    "earlier": "near",
    "near": "near",
}


@compiled
def explain_items(
    counts: ContextCounts,
    settings: CountSettings,
    networks: NetworkWeights,
    user: int,
    time: float,
    items: Array,
    buffer: CandidateBuffer,
    out: Array,
    nearest: Array,
) -> None:
    """Writes out[n, M]: what each source adds to the probability; nearest[n]: the nearest recent item, or -1."""
    half_lives = len(counts.popularity_total)
    size = collect_candidates(counts, settings, user, time, buffer)
    gates = np.zeros(len(networks.gating_logits), np.float32)
    compute_gates(networks, buffer, half_lives, gates)
    for k in range(len(items)):
        item = items[k]
        out[k, 0] = gates[0] / counts.num_items
        for h in range(half_lives):
            out[k, 1 + h] = gates[1 + h] * counts.popularity[h, item] / max(counts.popularity_total[h], 1e-30)
        if buffer.slot[item] != NONE:
            for s in range(CONTEXT_SOURCES):
                m = 1 + half_lives + s
                out[k, m] = gates[m] * buffer.probability[buffer.slot[item], s]
        nearest[k] = _nearest(counts, user, item)
    clear(buffer, size)


@compiled
def _nearest(counts: ContextCounts, user: int, item: int) -> int:
    """Returns the recent item whose `near` counts have the largest share of `item`; older ones weigh less."""
    best, nearest, decay = 0.0, NONE, 1.0
    for r in range(RECENT_ITEMS):
        other = counts.recent_items[user, r]
        if other == NONE:
            break
        row = find_row(counts.near, other)
        if row != NONE and other != item:
            entry = find_entry(counts.near, row, item)
            if entry != NONE:
                share = decay * counts.near.entry_counts[entry, COUNT] / counts.near.row_counts[row, COUNT]
                if share > best:
                    best, nearest = share, other
        decay *= NEAR_DECAY
    return nearest


def shares_by_reason(contributions: Array, half_lives: int) -> dict[str, float]:
    """Groups the contributions [M] of an item's sources into named shares that sum to one."""
    first = 1 + half_lives
    shares = {"history": 0.0, "followed": 0.0, "near": 0.0, "popular": float(contributions[:first].sum())}
    ends = [*list(FIRST_SOURCE.values())[1:], CONTEXT_SOURCES]
    for (context, start), end in zip(FIRST_SOURCE.items(), ends, strict=True):
        shares[REASON_OF_CONTEXT[context]] += float(contributions[first + start : first + end].sum())
    total = sum(shares.values()) or 1.0
    return {name: share / total for name, share in shares.items()}
