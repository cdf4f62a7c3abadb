"""Levels: how many steps an event waits for. All events of a level run in parallel.

A cut is a sorted array of d-nodes, each the code 2·k + s of a state (k, s): its reader need not wait for event k.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from dynedge.plan.links import ACTIVE

Array = npt.NDArray[Any]

NO_CUT = np.zeros(0, np.int64)


def levels(prev: Array, cut: Array = NO_CUT) -> Array:
    """int32[n]: 0 for an event that writes nothing, else 1 + the deepest level among the events it waits for."""
    level: Array = _levels(prev, _mask(prev, cut))
    return level


def longest_path(prev: Array, cut: Array = NO_CUT) -> int:
    """The number of steps the window takes: the greatest level."""
    return int(levels(prev, cut).max(initial=0))


def _mask(prev: Array, cut: Array) -> Array:
    mask = np.zeros(2 * len(prev), np.bool_)
    mask[cut] = True
    return mask


@numba.njit(nogil=True, cache=True)
def _levels(prev: Array, mask: Array) -> Array:
    n = len(prev)
    level = np.zeros(n, np.int32)
    for k in range(n):
        p, q = prev[k, 0], prev[k, 1]
        if p == ACTIVE and q == ACTIVE:
            continue
        deepest = np.int32(0)
        if p >= 0 and not mask[2 * p]:
            deepest = level[p]
        if q >= 0 and not mask[2 * q + 1]:
            deepest = max(deepest, level[q])
        level[k] = deepest + 1
    return level
