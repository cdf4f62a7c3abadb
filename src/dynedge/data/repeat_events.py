"""A set of (user, item) pairs at C speed: which events are with an item their user had before."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled


@compiled
def empty() -> Array:
    """A table of keys: open addressing, 0 where free; its size is a power of two."""
    return np.zeros(1 << 16, np.uint64)


@compiled
def key_of(user: int, item: int) -> Any:
    """A pair as a key, never 0."""
    return (np.uint64(user) << np.uint64(32) | np.uint64(item)) + np.uint64(1)


@compiled
def place(pairs: Array, key: np.uint64) -> Any:
    """Where a key is in the table, or would be."""
    mask = np.uint64(len(pairs) - 1)
    at = ((key ^ (key >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)) & mask
    while pairs[at] != 0 and pairs[at] != key:
        at = (at + np.uint64(1)) & mask
    return at


@compiled
def grown(pairs: Array) -> Array:
    """The same set in a table twice as large."""
    larger = np.zeros(2 * len(pairs), np.uint64)
    for key in pairs:
        if key != 0:
            larger[place(larger, key)] = key
    return larger


@compiled
def repeats(user: Array, item: Array, wanted: Array) -> Array:
    """bool[E]: whether an event's pair happened before. Only users with wanted[user] are looked at; others: False."""
    pairs, count = empty(), 0
    found = np.zeros(len(user), np.bool_)
    for k in range(len(user)):
        if not wanted[user[k]]:
            continue
        key = key_of(user[k], item[k])
        at = place(pairs, key)
        found[k] = pairs[at] == key
        if not found[k]:
            pairs[at] = key
            count += 1
            if 2 * count > len(pairs):
                pairs = grown(pairs)
    return found
