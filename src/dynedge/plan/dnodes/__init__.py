"""Selection of d-nodes: methods that shorten the longest path of a window, given its links.

Every method returns d-nodes as a sorted int64 array of state codes 2·k + s (see levels.py). A new method is one file
here and one line in METHODS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dynedge.errors import UsageError
from dynedge.plan.dnodes.best_of_methods import best_dnodes
from dynedge.plan.dnodes.cut_by_time import cut_by_time_dnodes
from dynedge.plan.dnodes.depth import depth_dnodes
from dynedge.plan.dnodes.longest_path import longest_path_dnodes
from dynedge.utils.array_type import Array

__all__ = ["METHODS", "Method", "select_dnodes"]


class Method(NamedTuple):
    """A d-node method: select(prev, **{limit: value}), for one of the limits it accepts."""

    select: Callable[..., Array]
    limits: tuple[str, ...]  # of max_dnodes, max_depth and parts
    reads_time: bool = False  # takes the times of the events as `time`


METHODS = {
    "best": Method(best_dnodes, ("max_dnodes", "max_depth")),
    "longest-path": Method(longest_path_dnodes, ("max_dnodes",)),
    "depth": Method(depth_dnodes, ("max_depth",)),
    "cut-by-time": Method(cut_by_time_dnodes, ("parts",), reads_time=True),
}


def select_dnodes(
    prev: Array,
    method: str = "best",
    *,
    max_dnodes: int | None = None,
    max_depth: int | None = None,
    parts: int | None = None,
    time: Array | None = None,
) -> Array:
    """The d-nodes of a window. Exactly one limit must be given, and the method must accept it.

    max_dnodes: maximum number of d-nodes. max_depth: maximum length of a path. parts: number of parts of the window.
    `time` float64[n]: the times of its events, for methods that read them.
    """
    if method not in METHODS:
        raise UsageError(f"unknown d-node method {method!r}; choose one of: {', '.join(METHODS)}.")
    limits = {"max_dnodes": max_dnodes, "max_depth": max_depth, "parts": parts}
    given = {name: value for name, value in limits.items() if value is not None}
    accepted = METHODS[method].limits
    if len(given) != 1 or (name := next(iter(given))) not in accepted:
        raise UsageError(f"d-node method {method!r} takes exactly one of: {', '.join(accepted)}.")
    least = 0 if name == "max_dnodes" else 1
    if given[name] < least:
        raise UsageError(f"{name} is {given[name]}; it must be at least {least}.")
    times = {"time": time} if METHODS[method].reads_time else {}
    return METHODS[method].select(prev, **given, **times)
