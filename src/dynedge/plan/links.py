"""Links: the previous event of each event's user and item within a window (the paper's Algorithm 1).

Legend: n events in the window, U users, I items. Event positions are relative to the window's start.
`prev[k, s]` is the previous event of the same entity on side s (0 user, 1 item). Event k writes one state per side,
identified by the pair (k, s), unless the entity is active. A state is read by at most one later event, the next event
of the same entity.
"""

from __future__ import annotations

import threading

import numpy as np

from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

ENTRY = -1  # first event of the entity in the window: it reads the state at the window's start
ACTIVE = -2  # active entity: the event reads the learned vector ψ and writes no state


def active_mask(counts: Array, threshold: int | None) -> Array:
    """bool[N]: True for entities with more than `threshold` events; all False if the threshold is None."""
    return np.zeros(len(counts), np.bool_) if threshold is None else np.asarray(counts > threshold)


def link_events(
    user: Array, item: Array, active_user: Array, active_item: Array, last_user: Array, last_item: Array
) -> Array:
    """Returns prev int32[n, 2] of one window, in O(n).

    `last_user` int32[U] and `last_item` int32[I] are scratch arrays filled with ENTRY. They are restored before
    returning, so that the cost of a window does not depend on U and I. Threads must not share them; see `Linker`.
    """
    prev = np.empty((len(user), 2), np.int32)
    _link_side(user, active_user, last_user, prev, 0)
    _link_side(item, active_item, last_item, prev, 1)
    return prev


class Linker:
    """Computes the links of the windows of one log. Thread-safe: each thread has its own scratch arrays."""

    def __init__(self, active_user: Array, active_item: Array) -> None:
        self.active_user, self.active_item = active_user, active_item
        self._scratch = threading.local()

    def __call__(self, user: Array, item: Array) -> Array:
        if not hasattr(self._scratch, "last"):
            sizes = len(self.active_user), len(self.active_item)
            self._scratch.last = tuple(np.full(size, ENTRY, np.int32) for size in sizes)
        return link_events(user, item, self.active_user, self.active_item, *self._scratch.last)


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
