"""d-nodes: which states to cut, so that the longest path of a window gets short. Pure functions of the links.

A cut is a sorted int64 array of codes 2·k + s, one for each state (k, s) whose reader reads φ instead.
"""

from __future__ import annotations

from collections.abc import Callable

from dynedge.errors import UsageError
from dynedge.plan.dnodes.best import best
from dynedge.plan.dnodes.cut_by_time import cut_by_time
from dynedge.plan.dnodes.depth import depth
from dynedge.plan.dnodes.longest_path import longest_path_dnodes
from dynedge.utils.arrays import Array

METHODS: dict[str, Callable[..., Array]] = {
    "best": best,
    "longest-path": longest_path_dnodes,
    "depth": depth,
    "cut-by-time": cut_by_time,
}
TAKES = {"best": ("k", "depth"), "longest-path": ("k",), "depth": ("depth",), "cut-by-time": ("parts",)}

__all__ = ["METHODS", "TAKES", "best", "cut_by_time", "depth", "longest_path_dnodes", "select"]


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
