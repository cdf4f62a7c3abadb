"""Method longest-path: the paper's Algorithm 2. Repeatedly finds a longest path and cuts it at its centre.

Ties between longest paths: the path ends at the earliest event of the highest level and goes back through the parent
one level below, the user's side first. Of its L events, the one of level ⌈L/2⌉ is the centre (the third of six), and
the d-node is the state through which the path leaves it. Selection stops when the longest path is a single event.

A cut changes only the levels after it, and only lowers them. They are updated in time order, starting at the reader
of the d-node, with a bit set of events to visit, instead of being recomputed for the whole window.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynedge.plan.levels import levels_with_cuts
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled


def longest_path_dnodes(prev: Array, max_dnodes: int) -> Array:
    """The d-nodes of Algorithm 2 with K = max_dnodes; fewer if the longest path is down to one event before."""
    selected, _ = cut_longest_paths(prev, max_dnodes, 1)
    return np.sort(selected)


@compiled
def cut_longest_paths(prev: Array, max_dnodes: int, depth: int) -> tuple[Array, int]:
    """(d-nodes in order of selection, longest path with them).

    Stops at `max_dnodes` d-nodes, or when no path is longer than `depth`.
    """
    n = len(prev)
    before, after = prev.copy(), np.full((n, 2), -1, np.int32)
    for e in range(n):
        for s in range(2):
            if prev[e, s] >= 0:
                after[prev[e, s], s] = e
    level = levels_with_cuts(prev, np.zeros((n, 2), np.bool_))
    dirty = np.zeros(n // 64 + 1, np.uint64)
    selected = np.empty(min(max_dnodes, 2 * n), np.int64)
    longest, ends = _deepest_events(level)
    at = size = 0
    while size < len(selected) and longest > max(depth, 1):
        reader, side = _centre_link(before, level, ends[at])
        parent = before[reader, side]
        selected[size] = 2 * parent + side
        size += 1
        before[reader, side] = after[parent, side] = -1
        _update_levels(reader, before, after, level, dirty)
        while at < len(ends) and level[ends[at]] != longest:  # levels only fall: no event joins the deepest ones
            at += 1
        if at == len(ends):
            longest, ends = _deepest_events(level)
            at = 0
    return selected[:size], longest


@compiled
def _deepest_events(level: Array) -> tuple[int, Array]:
    """The highest level and its events, earliest first."""
    longest = np.int32(0)
    for k in range(len(level)):
        longest = max(longest, level[k])
    return int(longest), np.flatnonzero(level == longest)


@compiled
def _centre_link(before: Array, level: Array, end: int) -> tuple[int, int]:
    """(reader, side) of the link that leaves the centre of the longest path ending at event `end`."""
    target = (level[end] + 1) // 2
    k = end
    while True:
        p = before[k, 0]
        side = 0 if p >= 0 and level[p] == level[k] - 1 else 1
        if level[k] == target + 1:
            return k, side
        k = before[k, side]


@compiled
def _update_levels(start: int, before: Array, after: Array, level: Array, dirty: Array) -> None:
    """Recomputes the level of event `start` and, in time order, of the events whose level depends on a change."""
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
            if reader >= 0 and level[reader] == old + 1:  # otherwise its level came from its other parent
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
