"""Method best (the default): message passing combined with a search over the depth. Never worse than Algorithm 2.

Given max_depth: the fewest d-nodes among message passing, the method `depth` and Algorithm 2.
Given max_dnodes: Algorithm 2 gives a depth that is surely reachable. From there the search looks for the smallest
depth for which message passing needs at most max_dnodes: steps double while they succeed, then the last is bisected.
"""

from __future__ import annotations

import numpy as np

from dynedge.plan.dnodes.depth import depth_dnodes
from dynedge.plan.dnodes.graph import Core, codes_in_window, dnode_codes, extract_core, heights
from dynedge.plan.dnodes.longest_path import cut_longest_paths
from dynedge.plan.dnodes.trws_solver import cut_core
from dynedge.plan.levels import levels_with_cuts
from dynedge.utils.array_type import Array

# Message-passing sweeps: QUICK while searching in a large core, THOROUGH in a small core or at the final depth.
QUICK, THOROUGH = 4, 10
SMALL_CORE = 2000  # events
SHALLOW = (
    32  # up to this depth many values of max_dnodes reach the same depth, and a thorough last run often needs fewer
)


def best_dnodes(prev: Array, max_dnodes: int | None = None, max_depth: int | None = None) -> Array:
    """At most `max_dnodes` d-nodes and a short longest path, or few d-nodes and no path longer than `max_depth`."""
    no_cuts = np.zeros(prev.shape, np.bool_)
    level, height = levels_with_cuts(prev, no_cuts), heights(prev, no_cuts)
    if max_depth is not None:
        return _fewest_for_depth(extract_core(prev, level, height, max_depth), max_depth)
    assert max_dnodes is not None
    return _shallowest_for_count(prev, level, height, max_dnodes)


def _fewest_for_depth(core: Core, limit: int) -> Array:
    is_cut, _ = cut_core(core, limit, THOROUGH, 0)
    dnodes = min(dnode_codes(core.prev, is_cut), depth_dnodes(core.prev, limit), key=len)
    # A path that is too long lies inside the core, so Algorithm 2 selects the same d-nodes there as in the window.
    selected, longest = cut_longest_paths(core.prev, max(0, len(dnodes) - 1), limit)
    return codes_in_window(core, np.sort(selected) if longest <= limit else dnodes)


def _shallowest_for_count(prev: Array, level: Array, height: Array, max_dnodes: int) -> Array:
    selected, high = cut_longest_paths(prev, max_dnodes, 1)
    dnodes = np.sort(selected)
    if max_dnodes == 0:
        return dnodes
    longest = int(level.max(initial=0))
    low, step = 0, max(1, _distance_to_ends(high, longest) // 8)
    while high - low > 1 + _distance_to_ends(high, longest) // 32:
        middle = max((low + high) // 2, high - step)
        core = extract_core(prev, level, height, middle)
        sweeps = THOROUGH if len(core.event) < SMALL_CORE else QUICK
        is_cut, count = cut_core(core, middle, sweeps, max_dnodes)
        if count <= max_dnodes:
            dnodes, high, step = codes_in_window(core, dnode_codes(core.prev, is_cut)), middle, 2 * step
        else:
            low = middle
    if 1 < high <= SHALLOW:
        core = extract_core(prev, level, height, high)
        is_cut, count = cut_core(core, high, THOROUGH, 0)
        if count < len(dnodes):
            dnodes = codes_in_window(core, dnode_codes(core.prev, is_cut))
    return dnodes


def _distance_to_ends(depth: int, longest: int) -> int:
    """Distance of a depth from 0 and from the longest path: the scale for the precision of the search."""
    return min(depth, longest - depth)
