"""What the cutters share: heads, tails, the core of a window, and cuts as marks on the links.

A link is known by its reader: `cut[k, s]` marks that event k does not wait for event `prev[k, s]`.
`head[k]` is the length in events of the longest path that ends with event k, `tail[k]` of the longest that starts
with it. The longest path over the link p → k has head[p] + tail[k] events.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.plan.levels import heads
from dynedge.plan.links import ACTIVE, ENTRY
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled


class Core(NamedTuple):
    """The events and links of a window that lie on a path longer than `limit`, renumbered in order.

    Every path longer than `limit` lies wholly inside, so to cut the core to that depth is to cut the window to it.
    """

    event: Array  # int32[m], the window's event
    prev: Array  # int32[m, 2], the links among them; ENTRY where there is none
    next: Array  # int32[m, 2], the readers; ENTRY where there is none
    head: Array  # int32[m], in the whole window


def codes(prev: Array, cut: Array) -> Array:
    """The sorted codes 2·k + s of the states whose readers are marked."""
    reader, side = np.nonzero(cut)
    return np.sort(2 * prev[reader, side].astype(np.int64) + side)


def mirror(prev: Array) -> Array:
    """The links with time reversed. A mark at [k, s] there stands for the state (n − 1 − k, s) here."""
    n = len(prev)
    mirrored: Array = np.where(prev == ACTIVE, np.int32(ACTIVE), np.int32(ENTRY))[::-1].copy()
    reader, side = np.nonzero(prev >= 0)
    mirrored[n - 1 - prev[reader, side], side] = n - 1 - reader
    return mirrored


@compiled
def tails(prev: Array, cut: Array) -> Array:
    """int32[n]: the length of the longest path that starts with each event."""
    n = len(prev)
    tail = np.zeros(n, np.int32)
    for k in range(n - 1, -1, -1):
        if prev[k, 0] == ACTIVE and prev[k, 1] == ACTIVE:
            continue
        tail[k] += 1
        for s in range(2):
            p = prev[k, s]
            if p >= 0 and not cut[k, s] and tail[p] < tail[k]:
                tail[p] = tail[k]
    return tail


@compiled
def core_of(prev: Array, head: Array, tail: Array, limit: int) -> Core:
    """The core above `limit` of a window with those heads and tails."""
    new = np.full(len(prev), ENTRY, np.int32)
    m = 0
    for k in range(len(prev)):
        if head[k] + tail[k] - 1 > limit:
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
            if p >= 0 and head[p] + tail[k] > limit:
                before[c, s] = new[p]
                after[new[p], s] = c
    return Core(event, before, after, head[event])


@compiled
def prune(prev: Array, cut: Array, limit: int) -> int:
    """Unmark, latest first, what no path longer than `limit` needs; returns how many marks are left."""
    n = len(prev)
    head = heads(prev, cut)
    tail = np.zeros(n, np.int32)
    left = 0
    for k in range(n - 1, -1, -1):
        tail[k] += 1
        for s in range(2):
            p = prev[k, s]
            if p < 0:
                continue
            if cut[k, s]:
                if head[p] + tail[k] > limit:
                    left += 1
                    continue
                cut[k, s] = False
            tail[p] = max(tail[p], tail[k])
    return left
