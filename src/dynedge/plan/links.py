"""Links (the paper's Algorithm 1): which earlier event of its window each event reads, for each side.

Legend: n events of a window, U users, I items. Positions are local to the window.
`prev[k, s]` is the previous event of the same side-`s` entity; the state `(k, s)` is the one event k writes for
that entity, and exists unless `prev[k, s]` is ACTIVE. It is read by at most one later event: the entity's next.
"""

from __future__ import annotations

import threading

import numpy as np

from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

ENTRY = -1  # no earlier event in the window: reads the state at the window's start
ACTIVE = -2  # an active entity: reads ψ, writes nothing


def active(counts: Array, threshold: int | None) -> Array:
    """bool[N]: the entities with more than `threshold` events; None means none."""
    return np.zeros(len(counts), np.bool_) if threshold is None else np.asarray(counts > threshold)


def links(
    user: Array, item: Array, active_user: Array, active_item: Array, last_user: Array, last_item: Array
) -> Array:
    """prev int32[n, 2] of one window, in O(n).

    `last_user` int32[U] and `last_item` int32[I] are scratch: ENTRY everywhere before, and again after, so that a
    window costs nothing for the entities it does not meet. One pair a thread; `Linker` keeps them.
    """
    prev = np.empty((len(user), 2), np.int32)
    _link_side(user, active_user, last_user, prev, 0)
    _link_side(item, active_item, last_item, prev, 1)
    return prev


class Linker:
    """Links of window after window of one log, from any thread: each thread gets its own scratch."""

    def __init__(self, active_user: Array, active_item: Array) -> None:
        self.active_user, self.active_item = active_user, active_item
        self._scratch = threading.local()

    def __call__(self, user: Array, item: Array) -> Array:
        if not hasattr(self._scratch, "last"):
            sizes = len(self.active_user), len(self.active_item)
            self._scratch.last = tuple(np.full(size, ENTRY, np.int32) for size in sizes)
        return links(user, item, self.active_user, self.active_item, *self._scratch.last)


@compiled
def _link_side(ids: Array, is_active: Array, last: Array, prev: Array, side: int) -> None:
    for k in range(len(ids)):
        entity = ids[k]
        if is_active[entity]:
            prev[k, side] = ACTIVE
        else:
            prev[k, side] = last[entity]
            last[entity] = k
    for k in range(len(ids)):
        last[ids[k]] = ENTRY
