"""Method cut-by-time: equal, independent parts of the window. The paper's baseline."""

from __future__ import annotations

import numpy as np

from dynedge.plan.dnodes.graph import dnode_codes
from dynedge.utils.array_type import Array


def cut_by_time_dnodes(prev: Array, parts: int) -> Array:
    """The states that are read across a boundary between `parts` equal contiguous parts of the window."""
    n = len(prev)
    part = np.arange(n, dtype=np.int64) * parts // max(n, 1)
    return dnode_codes(prev, (prev >= 0) & (part[np.maximum(prev, 0)] != part[:, None]))
