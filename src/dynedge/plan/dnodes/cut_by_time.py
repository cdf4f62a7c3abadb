"""Method cut-by-time: independent parts of the window, of equal duration. The paper's baseline."""

from __future__ import annotations

import numpy as np

from dynedge.plan.dnodes.graph import dnode_codes
from dynedge.utils.array_type import Array


def cut_by_time_dnodes(prev: Array, parts: int, time: Array | None = None) -> Array:
    """The states that are read across a boundary between `parts` time intervals of equal length.

    `time` float64[n]: times of the events, ascending. Without times, or if all are equal, the parts have equally many
    events.
    """
    n = len(prev)
    part = np.arange(n, dtype=np.int64) * parts // max(n, 1)
    if time is not None and n and time[-1] > time[0]:
        bounds = np.linspace(time[0], time[-1], parts + 1)[1:-1]
        part = np.searchsorted(bounds, time, side="right")
    return dnode_codes(prev, (prev >= 0) & (part[np.maximum(prev, 0)] != part[:, None]))
