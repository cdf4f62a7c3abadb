"""Cost model: predicted epoch time from the number of levels and of written rows.

A level has a fixed cost (calls, kernel launches, a barrier) and a row has a share of the arithmetic. d-nodes reduce
the number of levels.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dynedge.errors import UsageError
from dynedge.utils.array_type import Array

PASSES = 3  # an epoch is one forward pass and a backward pass of about twice its cost


@dataclass(frozen=True)
class CostModel:
    """Forward cost of one level and of one written row on a machine."""

    machine: str
    level_us: float
    row_ns: float

    def epoch_seconds(self, levels: float, rows: float) -> float:
        """Predicted seconds per epoch; `levels` and `rows` are sums over all windows."""
        return PASSES * (levels * self.level_us * 1e-6 + rows * self.row_ns * 1e-9)

    def __str__(self) -> str:
        return f"{self.machine}: {self.level_us:.3g} µs per level, {self.row_ns:.3g} ns per row"


# Persistent kernel at width 64, bf16 products, float32 states: 4.2 µs for a narrow level, 1 ns per row of a wide one.
H200 = CostModel("NVIDIA H200", 4.2, 1.0)


def max_depth_within(budget: float, longest_paths: Sequence[int], rows: int, cost: CostModel) -> int:
    """The greatest depth (hence the fewest d-nodes) for which an epoch is predicted to take at most `budget` seconds.

    `longest_paths` are those of the windows without d-nodes; windows shallower than the depth are not cut.
    """
    depths = np.asarray(longest_paths, np.int64)

    def seconds(depth: int) -> float:
        return cost.epoch_seconds(int(np.minimum(depths, depth).sum()), rows)

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
def measure_cpu(width: int = 64) -> CostModel:
    """Cost model of one core of this machine, fitted to the times of a narrow and a wide GRU level in numpy."""
    narrow, wide = 1, 64  # products of 64 rows still run in one thread, so other load disturbs them little
    fast, slow = (_level_seconds(rows, width) for rows in (narrow, wide))
    row = max(slow - fast, 1e-9) / (2 * (wide - narrow))
    level = max(fast - 2 * narrow * row, fast / 2)
    return CostModel("this CPU", level * 1e6, row * 1e9)


def _level_seconds(rows: int, width: int, min_seconds: float = 0.05) -> float:
    """The least CPU time of one level with `rows` rows per side: gather, update, write."""
    rng = np.random.default_rng(0)
    arena = rng.standard_normal((4 * rows, width), np.float32)
    weights = rng.standard_normal((2, width, 3 * width), np.float32) / width
    own, other = rng.integers(0, len(arena), (2, rows))
    shortest, end = np.inf, time.perf_counter() + min_seconds
    while time.perf_counter() < end:
        start = time.thread_time()
        for side in (0, 1):
            arena[side * rows : (side + 1) * rows] = _gru(arena[own], arena[other], *weights)
        shortest = min(shortest, time.thread_time() - start)
    return float(shortest)


def _gru(own: Array, other: Array, own_weights: Array, other_weights: Array) -> Array:
    width = own.shape[1]
    from_own, from_other = own @ own_weights, other @ other_weights
    gates = 1 / (1 + np.exp(-(from_own[:, : 2 * width] + from_other[:, : 2 * width])))
    update, reset = gates[:, :width], gates[:, width:]
    candidate = np.tanh(from_other[:, 2 * width :] + reset * from_own[:, 2 * width :])
    result: Array = update * own + (1 - update) * candidate
    return result
