"""best: the default. The messages' cuts, searched over the depth, and never worse than Algorithm 2's.

Asked by depth: the fewest of what the messages, the passes of `depth` and Algorithm 2 need for it.
Asked by k: Algorithm 2 says which depth is surely within reach; from there down, the shallowest depth for which the
messages need no more than k. Steps grow while they succeed, then the last one is halved.
"""

from __future__ import annotations

import numpy as np

from dynedge.plan.dnodes.depth import depth as by_depth
from dynedge.plan.dnodes.graph import Core, codes, core_of, tails
from dynedge.plan.dnodes.longest_path import choose
from dynedge.plan.dnodes.message_passing import cut_core
from dynedge.plan.levels import heads
from dynedge.utils.arrays import Array

QUICK, THOROUGH = 4, 10  # sweeps: while searching a large core; in a small one, or at a depth that is given or found
SMALL = 2000
SHALLOW = 32  # up to here one depth serves many k, and it pays to look for fewer d-nodes at the depth found


def best(prev: Array, k: int | None = None, depth: int | None = None) -> Array:
    """At most k d-nodes and a short longest path, or few d-nodes and no path longer than `depth`."""
    uncut = np.zeros(prev.shape, np.bool_)
    head, tail = heads(prev, uncut), tails(prev, uncut)
    if depth is not None:
        return _to_depth(core_of(prev, head, tail, depth), depth)
    assert k is not None
    return _with_dnodes(prev, head, tail, k)


def _to_depth(core: Core, limit: int) -> Array:
    marks, _ = cut_core(core, limit, THOROUGH, 0)
    cut = min(codes(core.prev, marks), by_depth(core.prev, limit), key=len)
    # Inside the core Algorithm 2 chooses as in the window, as long as a path is too long: such a path lies inside
    chosen, reached = choose(core.prev, max(0, len(cut) - 1), limit)
    return _in_window(core, np.sort(chosen) if reached <= limit else cut)


def _with_dnodes(prev: Array, head: Array, tail: Array, k: int) -> Array:
    chosen, high = choose(prev, k, 1)
    cut = np.sort(chosen)
    if k == 0:
        return cut
    longest = int(head.max(initial=0))
    low, step = 0, max(1, _gap(high, longest) // 8)
    while high - low > 1 + _gap(high, longest) // 32:
        middle = max((low + high) // 2, high - step)
        core = core_of(prev, head, tail, middle)
        marks, count = cut_core(core, middle, THOROUGH if len(core.event) < SMALL else QUICK, k)
        if count <= k:
            cut, high, step = _in_window(core, codes(core.prev, marks)), middle, 2 * step
        else:
            low = middle
    if 1 < high <= SHALLOW:
        core = core_of(prev, head, tail, high)
        marks, count = cut_core(core, high, THOROUGH, 0)
        if count < len(cut):
            cut = _in_window(core, codes(core.prev, marks))
    return cut


def _gap(depth: int, longest: int) -> int:
    """How far a depth is from both ends: a difference in depth counts for little beside it."""
    return min(depth, longest - depth)


def _in_window(core: Core, cut: Array) -> Array:
    """A cut of the core, in the window's events."""
    return 2 * core.event[cut >> 1].astype(np.int64) + (cut & 1)
