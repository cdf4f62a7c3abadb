"""What a plan costs to run: so many microseconds a level, so many nanoseconds a row.

A level is a fixed cost (calls, launches, a barrier), a row a share of the arithmetic: depth is what d-nodes save.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dynedge.errors import UsageError
from dynedge.utils.arrays import Array

PASSES = 3  # an epoch runs forward once, and backward at about twice the cost


@dataclass(frozen=True)
class Cost:
    """The forward cost of one level and of one written row on a machine."""

    machine: str
    level_us: float
    row_ns: float

    def seconds(self, levels: float, rows: float) -> float:
        """An epoch of so many levels and written rows, over all windows."""
        return PASSES * (levels * self.level_us * 1e-6 + rows * self.row_ns * 1e-9)

    def __str__(self) -> str:
        return f"{self.machine}: {self.level_us:.3g} µs a level, {self.row_ns:.3g} ns a row"


# One persistent kernel at d=64, bf16 products, float32 states: thin levels at 4.2 µs, wide ones at 1 ns a row.
H200 = Cost("NVIDIA H200", 4.2, 1.0)


def depth_within(budget: float, longest_paths: Sequence[int], rows: int, cost: Cost) -> int:
    """The greatest depth, so the fewest d-nodes, at which an epoch takes at most `budget` seconds.

    `longest_paths` are the windows' own, uncut; a window that is shallower than the depth costs what it costs.
    """
    depths = np.asarray(longest_paths, np.int64)

    def seconds(depth: int) -> float:
        return cost.seconds(int(np.minimum(depths, depth).sum()), rows)

    if not seconds(1) <= budget:
        raise UsageError(
            f"--budget {budget:g} cannot be met: with every link cut an epoch still takes "
            f"{seconds(1):.3g} s on {cost.machine}."
        )
    low, high = 1, max(int(depths.max(initial=1)), 1)
    while low < high:
        middle = (low + high + 1) // 2
        if seconds(middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


@cache
def measure(width: int = 64) -> Cost:
    """Time levels of a GRU in numpy on a core of this machine, thin and wide, and take the two costs apart."""
    thin, wide = 1, 64  # 64: products this small stay in one thread, undisturbed by what else the machine does
    fast, slow = (_level_seconds(rows, width) for rows in (thin, wide))
    row = max(slow - fast, 1e-9) / (2 * (wide - thin))
    level = max(fast - 2 * thin * row, fast / 2)
    return Cost("this CPU", level * 1e6, row * 1e9)


def _level_seconds(rows: int, width: int, least_seconds: float = 0.05) -> float:
    """The quickest of many runs of one level: `rows` rows of each side gathered, updated, written."""
    rng = np.random.default_rng(0)
    arena = rng.standard_normal((4 * rows, width), np.float32)
    weights = rng.standard_normal((2, width, 3 * width), np.float32) / width
    own, other = rng.integers(0, len(arena), (2, rows))
    quickest, end = np.inf, time.perf_counter() + least_seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for side in (0, 1):
            arena[side * rows : (side + 1) * rows] = _gru(arena[own], arena[other], *weights)
        quickest = min(quickest, time.perf_counter() - start)
    return float(quickest)


def _gru(own: Array, other: Array, own_weights: Array, other_weights: Array) -> Array:
    width = own.shape[1]
    mine, theirs = own @ own_weights, other @ other_weights
    gates = 1 / (1 + np.exp(-(mine[:, : 2 * width] + theirs[:, : 2 * width])))
    update, reset = gates[:, :width], gates[:, width:]
    candidate = np.tanh(theirs[:, 2 * width :] + reset * mine[:, 2 * width :])
    result: Array = update * own + (1 - update) * candidate
    return result
