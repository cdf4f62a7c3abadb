"""depth: a depth is given; scan in time order and cut where an event would exceed it. A few passes, O(n) each."""

from __future__ import annotations

import numpy as np

from dynedge.plan.dnodes.graph import codes, mirror, prune, tails
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

SHARES = (1.0, 0.5)  # of the depth: how deep the other link of an event that is cut must be to be cut too


def depth(prev: Array, depth: int) -> Array:
    """Few d-nodes such that no path is longer than `depth`: the best of passes forward and backward in time."""
    mirrored = mirror(prev)
    passes = [codes(prev, _scan(prev, depth, share)) for share in SHARES]
    passes += [np.flatnonzero(_scan(mirrored, depth, share)[::-1]) for share in SHARES]
    return min(passes, key=len)


@compiled
def _scan(prev: Array, limit: int, share: float) -> Array:
    """Cut as late as can be, and only where the path goes on to be too long; then drop what was not needed."""
    n = len(prev)
    head = np.zeros(n, np.int32)
    cut = np.zeros((n, 2), np.bool_)
    tail = tails(prev, cut)
    for k in range(n):
        p, q = prev[k, 0], prev[k, 1]
        a = head[p] if p >= 0 else 0
        b = head[q] if q >= 0 else 0
        deepest = max(a, b)
        if deepest >= limit and deepest + tail[k] > limit:
            enough = min(limit, share * limit + 1)
            if a >= enough:
                cut[k, 0], a = True, 0
            if b >= enough:
                cut[k, 1], b = True, 0
        head[k] = max(a, b) + 1
    prune(prev, cut, limit)
    return cut
