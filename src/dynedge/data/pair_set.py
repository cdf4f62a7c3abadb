"""Compiled hash set of (user, item) pairs, and which events repeat an earlier pair.

The set is a power-of-two array of keys with open addressing; 0 marks a free slot. Callers keep it at most half full.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled


@compiled
def empty_set() -> Array:
    """Returns an empty set with the initial capacity."""
    return np.zeros(1 << 16, np.uint64)


@compiled
def pair_key(user: int, item: int) -> Any:
    """Returns the key of a pair; never 0."""
    return (np.uint64(user) << np.uint64(32) | np.uint64(item)) + np.uint64(1)


@compiled
def find_slot(pairs: Array, key: np.uint64) -> Any:
    """Returns the slot that holds a key, or the free slot where it belongs."""
    mask = np.uint64(len(pairs) - 1)
    slot = ((key ^ (key >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)) & mask
    while pairs[slot] != 0 and pairs[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return slot


@compiled
def doubled(pairs: Array) -> Array:
    """Returns the same set in a table of twice the size."""
    larger = np.zeros(2 * len(pairs), np.uint64)
    for key in pairs:
        if key != 0:
            larger[find_slot(larger, key)] = key
    return larger


@compiled
def repeated_pairs(user: Array, item: Array, include: Array) -> Array:
    """Returns bool[E]: whether an event's pair occurred before. Users without include[user] are skipped: False."""
    pairs, count = empty_set(), 0
    repeated = np.zeros(len(user), np.bool_)
    for k in range(len(user)):
        if not include[user[k]]:
            continue
        key = pair_key(user[k], item[k])
        slot = find_slot(pairs, key)
        repeated[k] = pairs[slot] == key
        if not repeated[k]:
            pairs[slot] = key
            count += 1
            if 2 * count > len(pairs):
                pairs = doubled(pairs)
    return repeated
