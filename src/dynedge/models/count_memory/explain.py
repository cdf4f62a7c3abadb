"""Why the memory says what it says of an item: the contexts its probability comes from, and the item it is near."""

from __future__ import annotations

import numpy as np

from dynedge.models.count_memory.contexts import (
    FIRST,
    NEAR_FADE,
    RING,
    SOURCES,
    Fading,
    Found,
    Store,
    forget,
    look,
)
from dynedge.models.count_memory.hash_table import COUNT, NONE, find_entry, find_row
from dynedge.models.count_memory.scoring import Weights, gate
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

NAMES = {"user": "history", "last": "followed", "pair": "followed", "own": "followed", "five": "near", "near": "near"}


@compiled
def explain(
    store: Store,
    fading: Fading,
    keep: Array,
    weights: Weights,
    user: int,
    time: float,
    items: Array,
    found: Found,
    out: Array,
    near: Array,
) -> None:
    """out[k, m]: what source m gives of item k's probability; near[k]: the last item it is nearest to, or -1.

    Sources are every item alike, the half-lives, the contexts'.
    """
    half_lives = len(store.popular_total)
    size = look(store, fading, keep, user, time, found)
    weight = np.zeros(len(weights.gate_start), np.float32)
    gate(weights, found, half_lives, weight)
    for k in range(len(items)):
        item = items[k]
        out[k, 0] = weight[0] / store.items
        for h in range(half_lives):
            out[k, 1 + h] = weight[1 + h] * store.popular[h, item] / max(store.popular_total[h], 1e-30)
        if found.slot[item] != NONE:
            for s in range(SOURCES):
                out[k, 1 + half_lives + s] = weight[1 + half_lives + s] * found.share[found.slot[item], s]
        near[k] = _nearest(store, user, item)
    forget(found, size)


@compiled
def _nearest(store: Store, user: int, item: int) -> int:
    best, nearest, fade = 0.0, NONE, 1.0
    for r in range(RING):
        other = store.ring[user, r]
        if other == NONE:
            break
        row = find_row(store.near, other)
        if row != NONE and other != item:
            entry = find_entry(store.near, row, item)
            if entry != NONE:
                share = fade * store.near.entry_count[entry, COUNT] / store.near.row_count[row, COUNT]
                if share > best:
                    best, nearest = share, other
        fade *= NEAR_FADE
    return nearest


def by_name(shares: Array, half_lives: int) -> dict[str, float]:
    """Shares of the probability under names for people, which sum to one."""
    found = {"history": 0.0, "followed": 0.0, "near": 0.0, "popular": float(shares[: 1 + half_lives].sum())}
    ends = [*list(FIRST.values())[1:], SOURCES]
    for (context, start), end in zip(FIRST.items(), ends, strict=True):
        found[NAMES[context]] += float(shares[1 + half_lives + start : 1 + half_lives + end].sum())
    total = sum(found.values()) or 1.0
    return {name: share / total for name, share in found.items()}
