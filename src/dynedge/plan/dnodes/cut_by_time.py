"""cut-by-time: the paper's comparison. Parts of a window that know nothing of each other."""

from __future__ import annotations

import numpy as np

from dynedge.plan.dnodes.graph import codes
from dynedge.utils.arrays import Array


def cut_by_time(prev: Array, parts: int) -> Array:
    """Cut every state that is read across the border of one of `parts` equal contiguous parts of the window."""
    n = len(prev)
    part = np.arange(n, dtype=np.int64) * parts // max(n, 1)
    return codes(prev, (prev >= 0) & (part[np.maximum(prev, 0)] != part[:, None]))
