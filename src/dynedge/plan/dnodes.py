"""d-nodes: which states to cut, so that the longest path of a window gets short. Pure functions of the links.

A cut is a sorted int64 array of codes 2·k + s, one for each state (k, s) whose reader reads φ instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from dynedge.errors import UsageError
from dynedge.plan.levels import NO_CUT

Array = npt.NDArray[Any]


def select(
    prev: Array, method: str = "best", *, k: int | None = None, depth: int | None = None, parts: int | None = None
) -> Array:
    """The cut a method chooses: asked by number of d-nodes (`k`), by `depth`, or by `parts`, as the method takes."""
    if method not in METHODS:
        raise UsageError(f"there is no method {method!r}; there are: {', '.join(METHODS)}.")
    asked = {name: value for name, value in (("k", k), ("depth", depth), ("parts", parts)) if value is not None}
    if len(asked) != 1 or (name := next(iter(asked))) not in TAKES[method]:
        raise UsageError(f"method {method!r} is asked by one of: {', '.join(TAKES[method])}.")
    if asked[name] < (0 if name == "k" else 1):
        raise UsageError(f"{name} = {asked[name]} is too small.")
    return METHODS[method](prev, **asked)


def cut_by_time(prev: Array, parts: int) -> Array:
    """Cut every state that is read across the border of one of `parts` equal contiguous parts of the window."""
    n = len(prev)
    part = np.arange(n, dtype=np.int64) * parts // max(n, 1)
    reader, side = np.nonzero((prev >= 0) & (part[prev] != part[:, None]))
    return np.sort(2 * prev[reader, side].astype(np.int64) + side)


def depth(prev: Array, depth: int) -> Array:
    """Few d-nodes such that no path is longer than `depth`: one pass in time order."""
    return np.flatnonzero(_depth_forward(prev, depth))


@numba.njit(nogil=True, cache=True)
def _depth_forward(prev: Array, limit: int) -> Array:
    n = len(prev)
    level = np.zeros(n, np.int32)
    mask = np.zeros(2 * n, np.bool_)
    for k in range(n):
        deepest = 0
        for s in range(2):
            p = prev[k, s]
            if p >= 0:
                if level[p] >= limit:
                    mask[2 * p + s] = True
                else:
                    deepest = max(deepest, level[p])
        level[k] = deepest + 1
    return mask


def best(prev: Array, k: int | None = None, depth: int | None = None) -> Array:
    """The default."""
    if depth is not None:
        return METHODS["depth"](prev, depth=depth)
    assert k is not None
    low, high = 1, max(len(prev), 1)
    while low < high:
        middle = (low + high) // 2
        if len(best(prev, depth=middle)) <= k:
            high = middle
        else:
            low = middle + 1
    return best(prev, depth=low)


def longest_path_dnodes(prev: Array, k: int) -> Array:
    return NO_CUT


METHODS: dict[str, Callable[..., Array]] = {
    "best": best,
    "longest-path": longest_path_dnodes,
    "depth": depth,
    "cut-by-time": cut_by_time,
}
TAKES = {"best": ("k", "depth"), "longest-path": ("k",), "depth": ("depth",), "cut-by-time": ("parts",)}
