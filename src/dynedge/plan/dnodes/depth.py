"""Method depth: scans the events in time order and cuts links where the level would exceed a limit, in O(n)."""

from __future__ import annotations

import numpy as np

from dynedge.plan.dnodes.graph import dnode_codes, heights, prune_cuts, reverse_time
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

# When one link of an event is cut, the other is cut too if its level reaches this share of the limit.
SECOND_LINK_SHARES = (1.0, 0.5)


def depth_dnodes(prev: Array, max_depth: int) -> Array:
    """Few d-nodes that leave no path longer than `max_depth`: the fewest of four scans, forward and backward in time.

    The scans differ in direction and in the share of SECOND_LINK_SHARES.
    """
    reversed_prev = reverse_time(prev)
    scans = [dnode_codes(prev, _scan(prev, max_depth, share)) for share in SECOND_LINK_SHARES]
    scans += [np.flatnonzero(_scan(reversed_prev, max_depth, share)[::-1]) for share in SECOND_LINK_SHARES]
    return min(scans, key=len)


@compiled
def _scan(prev: Array, limit: int, share: float) -> Array:
    """bool[n, 2]: cut links, each as late as possible and only on paths that exceed the limit; then pruned."""
    n = len(prev)
    level = np.zeros(n, np.int32)
    is_cut = np.zeros((n, 2), np.bool_)
    height = heights(prev, is_cut)
    for k in range(n):
        p, q = prev[k, 0], prev[k, 1]
        a = level[p] if p >= 0 else 0
        b = level[q] if q >= 0 else 0
        deepest = max(a, b)
        if deepest >= limit and deepest + height[k] > limit:
            threshold = min(limit, share * limit + 1)
            if a >= threshold:
                is_cut[k, 0], a = True, 0
            if b >= threshold:
                is_cut[k, 1], b = True, 0
        level[k] = max(a, b) + 1
    prune_cuts(prev, is_cut, limit)
    return is_cut
