"""longest-path: the paper's Algorithm 2. K times: take a longest path, cut it at its centre.

Which longest path, where there are several: the one that ends with the earliest event of the greatest level, walked
backward through the parent one level down, the user's side first. Of its L events the one of level ⌈L/2⌉ is the
centre (h3 of six), and the d-node is the state through which the path leaves it. A path of one event cannot be
shortened: the choice ends there.

After a cut only levels behind it can change, and only downwards. So they are mended in time order from the reader of
the d-node onward, through a bit set of the events to look at; a naive version recomputes all of them each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynedge.plan.levels import heads
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled


def longest_path_dnodes(prev: Array, k: int) -> Array:
    """Algorithm 2 with K = k; fewer where the longest path is down to one event before."""
    chosen, _ = choose(prev, k, 1)
    return np.sort(chosen)


@compiled
def choose(prev: Array, k: int, depth: int) -> tuple[Array, int]:
    """The choices in order, until there are k or no path is longer than `depth`; and the longest path after them."""
    n = len(prev)
    before, after = prev.copy(), np.full((n, 2), -1, np.int32)
    for e in range(n):
        for s in range(2):
            if prev[e, s] >= 0:
                after[prev[e, s], s] = e
    level = heads(prev, np.zeros((n, 2), np.bool_))
    dirty = np.zeros(n // 64 + 1, np.uint64)
    chosen = np.empty(min(k, 2 * n), np.int64)
    top, ends = _deepest(level)
    at = size = 0
    while size < len(chosen) and top > max(depth, 1):
        reader, side = _centre(before, level, ends[at])
        parent = before[reader, side]
        chosen[size] = 2 * parent + side
        size += 1
        before[reader, side] = after[parent, side] = -1
        _mend(reader, before, after, level, dirty)
        while at < len(ends) and level[ends[at]] != top:  # levels only fall: none joins the deepest
            at += 1
        if at == len(ends):
            top, ends = _deepest(level)
            at = 0
    return chosen[:size], top


@compiled
def _deepest(level: Array) -> tuple[int, Array]:
    """The greatest level and its events, earliest first."""
    top = np.int32(0)
    for k in range(len(level)):
        top = max(top, level[k])
    return int(top), np.flatnonzero(level == top)


@compiled
def _centre(before: Array, level: Array, end: int) -> tuple[int, int]:
    """(reader, side) of the link behind the centre of the path that ends there."""
    target = (level[end] + 1) // 2
    k = end
    while True:
        p = before[k, 0]
        side = 0 if p >= 0 and level[p] == level[k] - 1 else 1
        if level[k] == target + 1:
            return k, side
        k = before[k, side]


@compiled
def _mend(start: int, before: Array, after: Array, level: Array, dirty: Array) -> None:
    one = np.uint64(1)
    word = last = start >> 6
    dirty[word] |= one << np.uint64(start & 63)
    while word <= last:
        bits = dirty[word]
        if bits == 0:
            word += 1
            continue
        k = (word << 6) + _lowest_bit(bits)
        dirty[word] = bits & (bits - one)
        p, q, old = before[k, 0], before[k, 1], level[k]
        new = max(level[p] if p >= 0 else 0, level[q] if q >= 0 else 0) + 1
        if new == old:
            continue
        level[k] = new
        for s in range(2):
            reader = after[k, s]
            if reader >= 0 and level[reader] == old + 1:  # else it waited for its other parent
                dirty[reader >> 6] |= one << np.uint64(reader & 63)
                last = max(last, reader >> 6)


@compiled
def _lowest_bit(bits: Any) -> int:
    position = 0
    while bits & np.uint64(0xFF) == 0:
        bits >>= np.uint64(8)
        position += 8
    while bits & np.uint64(1) == 0:
        bits >>= np.uint64(1)
        position += 1
    return position
