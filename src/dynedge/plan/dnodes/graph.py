"""Graph functions shared by the d-node methods: path lengths, the core of a window, cut links.

A link is identified by its reader: `is_cut[k, s]` means that event k does not wait for event `prev[k, s]`.
`level[k]` is the number of events on the longest path that ends at event k, `height[k]` on the longest path that
starts there. The longest path over the link p → k has level[p] + height[k] events.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.plan.levels import levels_with_cuts
from dynedge.plan.links import ACTIVE, ENTRY
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled


class Core(NamedTuple):
    """The m events of a window that lie on a path longer than a limit, and their links, renumbered in time order.

    Every path longer than the limit lies inside the core, so cutting the core to that depth cuts the window to it.
    """

    event: Array  # int32[m]: position in the window
    prev: Array  # int32[m, 2]: links between events of the core, ENTRY where there is none
    next: Array  # int32[m, 2]: readers, ENTRY where there is none
    level: Array  # int32[m]: level in the whole window


def dnode_codes(prev: Array, is_cut: Array) -> Array:
    """The d-nodes of cut links bool[n, 2], as sorted codes 2·k + s."""
    reader, side = np.nonzero(is_cut)
    return np.sort(2 * prev[reader, side].astype(np.int64) + side)


def codes_in_window(core: Core, dnodes: Array) -> Array:
    """Converts d-nodes of the core into d-nodes of the window."""
    return 2 * core.event[dnodes >> 1].astype(np.int64) + (dnodes & 1)


def reverse_time(prev: Array) -> Array:
    """The links of the window with time reversed. A cut link [k, s] of it is the d-node (n − 1 − k, s) of `prev`."""
    n = len(prev)
    result: Array = np.where(prev == ACTIVE, np.int32(ACTIVE), np.int32(ENTRY))[::-1].copy()
    reader, side = np.nonzero(prev >= 0)
    result[n - 1 - prev[reader, side], side] = n - 1 - reader
    return result


@compiled
def heights(prev: Array, is_cut: Array) -> Array:
    """int32[n]: the length of the longest path that starts at each event."""
    n = len(prev)
    height = np.zeros(n, np.int32)
    for k in range(n - 1, -1, -1):
        if prev[k, 0] == ACTIVE and prev[k, 1] == ACTIVE:
            continue
        height[k] += 1
        for s in range(2):
            p = prev[k, s]
            if p >= 0 and not is_cut[k, s] and height[p] < height[k]:
                height[p] = height[k]
    return height


@compiled
def extract_core(prev: Array, level: Array, height: Array, limit: int) -> Core:
    """The core of a window: its events and links on paths longer than `limit`."""
    new = np.full(len(prev), ENTRY, np.int32)
    m = 0
    for k in range(len(prev)):
        if level[k] + height[k] - 1 > limit:
            new[k] = m
            m += 1
    event = np.empty(m, np.int32)
    before = np.full((m, 2), ENTRY, np.int32)
    after = np.full((m, 2), ENTRY, np.int32)
    for k in range(len(prev)):
        c = new[k]
        if c < 0:
            continue
        event[c] = k
        for s in range(2):
            p = prev[k, s]
            if p >= 0 and level[p] + height[k] > limit:
                before[c, s] = new[p]
                after[new[p], s] = c
    return Core(event, before, after, level[event])


@compiled
def prune_cuts(prev: Array, is_cut: Array, limit: int) -> int:
    """Restores cut links that no path longer than `limit` needs, latest first; returns the number still cut."""
    n = len(prev)
    level = levels_with_cuts(prev, is_cut)
    height = np.zeros(n, np.int32)
    count = 0
    for k in range(n - 1, -1, -1):
        height[k] += 1
        for s in range(2):
            p = prev[k, s]
            if p < 0:
                continue
            if is_cut[k, s]:
                if level[p] + height[k] > limit:
                    count += 1
                    continue
                is_cut[k, s] = False
            height[p] = max(height[p], height[k])
    return count
