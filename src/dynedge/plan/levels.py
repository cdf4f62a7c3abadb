"""Levels: the position of each event in the computation order. Events of one level can run in parallel.

A set of d-nodes is a sorted int64 array of state codes: the state (k, s), which event k writes for its entity on side
s, has the code 2·k + s. The reader of a d-node reads a learned vector φ and does not wait for event k; the link
between them is called cut.
"""

from __future__ import annotations

import numpy as np

from dynedge.plan.links import ACTIVE
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

NO_DNODES = np.zeros(0, np.int64)


def levels(prev: Array, dnodes: Array = NO_DNODES) -> Array:
    """int32[n]: 0 for an event that writes no state, else 1 + the highest level among the events it waits for."""
    is_dnode = np.zeros(2 * len(prev), np.bool_)
    is_dnode[dnodes] = True  # numpy checks the bounds of the codes
    level: Array = levels_with_cuts(prev, _cut_links(prev, is_dnode))
    return level


def longest_path(prev: Array, dnodes: Array = NO_DNODES) -> int:
    """The highest level: the number of sequential steps the window takes."""
    return int(levels(prev, dnodes).max(initial=0))


@compiled
def _cut_links(prev: Array, is_dnode: Array) -> Array:
    """bool[n, 2]: True where the state that event k reads on side s is a d-node."""
    is_cut = np.zeros(prev.shape, np.bool_)
    for k in range(len(prev)):
        for s in range(2):
            is_cut[k, s] = prev[k, s] >= 0 and is_dnode[2 * prev[k, s] + s]
    return is_cut


@compiled
def levels_with_cuts(prev: Array, is_cut: Array) -> Array:
    """int32[n]: the levels given the cut links bool[n, 2]; the length of the longest path that ends at each event."""
    level = np.zeros(len(prev), np.int32)
    for k in range(len(prev)):
        p, q = prev[k, 0], prev[k, 1]
        if p == ACTIVE and q == ACTIVE:
            continue
        a = level[p] if p >= 0 and not is_cut[k, 0] else np.int32(0)
        b = level[q] if q >= 0 and not is_cut[k, 1] else np.int32(0)
        level[k] = max(a, b) + 1
    return level
