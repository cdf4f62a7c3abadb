"""Levels: how many steps an event waits for. All events of a level run in parallel.

A cut is a sorted array of d-nodes, each the code 2·k + s of a state (k, s): its reader need not wait for event k.
"""

from __future__ import annotations

import numpy as np

from dynedge.plan.links import ACTIVE
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

NO_CUT = np.zeros(0, np.int64)


def levels(prev: Array, cut: Array = NO_CUT) -> Array:
    """int32[n]: 0 for an event that writes nothing, else 1 + the deepest level among the events it waits for."""
    is_cut = np.zeros(2 * len(prev), np.bool_)
    is_cut[cut] = True  # by numpy, which checks the codes
    level: Array = heads(prev, _marks(prev, is_cut))
    return level


def longest_path(prev: Array, cut: Array = NO_CUT) -> int:
    """The number of steps the window takes: the greatest level."""
    return int(levels(prev, cut).max(initial=0))


@compiled
def _marks(prev: Array, is_cut: Array) -> Array:
    """bool[n, 2]: a cut as seen by the readers. Event k does not wait for event prev[k, s]."""
    mark = np.zeros(prev.shape, np.bool_)
    for k in range(len(prev)):
        for s in range(2):
            mark[k, s] = prev[k, s] >= 0 and is_cut[2 * prev[k, s] + s]
    return mark


@compiled
def heads(prev: Array, mark: Array) -> Array:
    """int32[n]: the levels under a cut given by marks; the length of the longest path that ends with each event."""
    level = np.zeros(len(prev), np.int32)
    for k in range(len(prev)):
        p, q = prev[k, 0], prev[k, 1]
        if p == ACTIVE and q == ACTIVE:
            continue
        a = level[p] if p >= 0 and not mark[k, 0] else np.int32(0)
        b = level[q] if q >= 0 and not mark[k, 1] else np.int32(0)
        level[k] = max(a, b) + 1
    return level
