"""best: the default. The messages' cuts, searched over the depth, and never worse than Algorithm 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dynedge.plan.dnodes.by_depth import depth as by_depth
from dynedge.plan.dnodes.by_longest_path import choose
from dynedge.plan.dnodes.by_messages import LABELS, SWEEPS, cut_core
from dynedge.plan.dnodes.graph import codes, core_of, heads, tails

Array = npt.NDArray[Any]


def best(prev: Array, k: int | None = None, depth: int | None = None) -> Array:
    """At most k d-nodes and a short longest path, or few d-nodes and no path longer than `depth`."""
    if depth is not None:
        return _to_depth(prev, depth)
    assert k is not None
    return _with_dnodes(prev, k)


def _to_depth(prev: Array, limit: int) -> Array:
    uncut = np.zeros(prev.shape, np.bool_)
    core = core_of(prev, heads(prev, uncut), tails(prev, uncut), limit)
    marks, _ = cut_core(core, limit, 0, SWEEPS, LABELS)
    cut = min(codes(core.prev, marks), by_depth(core.prev, limit), key=len)
    chosen, reached = choose(core.prev, len(cut) - 1, limit)
    if reached <= limit:
        cut = np.sort(chosen)
    return 2 * core.event[cut >> 1].astype(np.int64) + (cut & 1)


def _with_dnodes(prev: Array, k: int) -> Array:
    chosen, high = choose(prev, k, 1)
    cut = np.sort(chosen)
    uncut = np.zeros(prev.shape, np.bool_)
    head, tail = heads(prev, uncut), tails(prev, uncut)
    low, step = 0, max(1, high // 32)
    while high - low > 1 + high // 128:
        middle = max((low + high) // 2, high - step)
        core = core_of(prev, head, tail, middle)
        marks, count = cut_core(core, middle, k, SWEEPS, LABELS)
        if count <= k:
            cut, high = codes(core.prev, marks), middle
            cut = 2 * core.event[cut >> 1].astype(np.int64) + (cut & 1)
            step *= 2
        else:
            low = middle
    return cut
