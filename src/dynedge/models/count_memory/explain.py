"""Explanations of scores: the sources of an item's probability, and the recent item that it is nearest to.

Legend: n items to explain, M sources (see network_kernels.py).
"""

from __future__ import annotations

import numpy as np

from dynedge.models.count_memory.candidate_buffer import CandidateBuffer, add_rows, clear
from dynedge.models.count_memory.candidates import collect_candidates
from dynedge.models.count_memory.contexts import (
    CONTEXT_SOURCES,
    NEAR_DECAY,
    NEAR_DISTANCE,
    RECENT_ITEMS,
    SOURCE,
    CountSettings,
)
from dynedge.models.count_memory.event_index import ITEM, LENGTH, NONE, PLACE, START, USER, EventIndex
from dynedge.models.count_memory.network_kernels import NetworkWeights, compute_gates
from dynedge.models.count_memory.popularity import Popularity
from dynedge.models.count_memory.queries import Query
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

REASON_OF_CONTEXT = {
    "user": "history",
    "user_last": "followed",
    "elapsed": "history",
    "last": "followed",
    "last_two": "followed",
    "after_gap": "followed",
    "similar": "followed",
    "earlier": "near",
    "near": "near",
    "session": "near",
    "alike": "near",
    "peers": "near",
    "recent": "popular",
    "now": "popular",
}


@compiled
def explain_items(
    index: EventIndex,
    popularity: Popularity,
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
    half_lives = len(popularity.total)
    query = Query(user, index.user_blocks[user, LENGTH], index.clock[0], time, index.latest_items)
    others, size = collect_candidates(index, settings, query, buffer)
    add_rows(buffer, others, np.arange(size))
    gates = np.zeros(len(networks.gating_logits), np.float32)
    compute_gates(networks, buffer, half_lives, gates)
    for k in range(len(items)):
        item = items[k]
        out[k, 0] = gates[0] / index.num_items
        for h in range(half_lives):
            out[k, 1 + h] = gates[1 + h] * popularity.counts[item, h] / max(popularity.total[h], 1e-30)
        if buffer.slot[item] != NONE:
            for s in range(CONTEXT_SOURCES):
                if buffer.totals[s] > 0:
                    m = 1 + half_lives + s
                    out[k, m] = gates[m] * buffer.sums[buffer.slot[item], s] / buffer.totals[s]
        nearest[k] = _nearest(index, settings, user, item)
    clear(buffer, size)


@compiled
def _nearest(index: EventIndex, settings: CountSettings, user: int, item: int) -> int:
    """Returns the recent item that has `item` near the largest share of its occurrences; older ones weigh less."""
    best, nearest = 0.0, NONE
    end = index.user_blocks[user, START] + index.user_blocks[user, LENGTH]
    for r in range(min(index.user_blocks[user, LENGTH], RECENT_ITEMS)):
        other = index.history[end - 1 - r, ITEM]
        start, length = index.item_blocks[other, START], index.item_blocks[other, LENGTH]
        read, found = min(length, settings.near_occurrences[r]), 0
        for x in range(start + length - read, start + length):
            block, place = index.user_blocks[index.occurrences[x, USER]], index.occurrences[x, PLACE]
            for y in range(max(place - NEAR_DISTANCE, 0), min(place + NEAR_DISTANCE + 1, block[LENGTH])):
                found += y != place and index.history[block[START] + y, ITEM] == item
        share = NEAR_DECAY**r * found / read
        if share > best * (1 + 1e-9) and other != item:  # of equal ones the newest, whatever the rounding
            best, nearest = share, other
    return nearest


def shares_by_reason(contributions: Array, half_lives: int) -> dict[str, float]:
    """Groups the contributions [M] of an item's sources into named shares that sum to one."""
    first = 1 + half_lives
    shares = {"history": 0.0, "followed": 0.0, "near": 0.0, "popular": float(contributions[:first].sum())}
    for (context, _), source in SOURCE.items():
        shares[REASON_OF_CONTEXT[context]] += float(contributions[first + source])
    total = sum(shares.values()) or 1.0
    return {name: share / total for name, share in shares.items()}
