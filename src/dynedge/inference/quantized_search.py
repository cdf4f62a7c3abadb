"""Exact top-k inner-product search over many items, pruned by 8-bit quantized item vectors.

Each vector is stored as int8 with a scale of its own, so the quantized inner product is off by at most half a scale
times the L1 norm of the query. Items that cannot reach the top k by these bounds are skipped; the rest are scored
exactly.

Legend: I items, D width of a vector; an item's row of the item matrix is its vector followed by its bias, which is
stored unquantized.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynedge.models.base import State
from dynedge.models.capabilities import Searchable
from dynedge.ops.thread_pool import run_in_parts
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

MAX_CODE = 127
BLOCK = 256  # items whose bounds are compared with the threshold together
BATCH = 1 << 14  # items quantized together
PARALLEL_ITEMS = 1 << 18  # from this many items, more than one thread is faster
ROUNDING = 0.51  # error in scales: half of one, plus what float rounding in the product may add
SLACK, TENS = 1e-5, 16.0  # float rounding in the sum with base scores up to 16; larger ones have more in proportion


class QuantizedSearch:
    """int8 copy of the item matrix, kept up to date with the state."""

    def __init__(self, model: Searchable, state: State, items: int) -> None:
        self.model = model
        width = model.item_matrix(torch.arange(min(items, 1)), state).shape[1] - 1
        self._codes = np.zeros((0, width), np.int8)
        self._scale_bias = np.zeros((0, 2), np.float32)
        self._items = 0
        self.grow(state, items)

    def grow(self, state: State, items: int) -> None:
        """Quantizes items added since the last call."""
        for start in range(self._items, items, BATCH):
            self.update(state, np.arange(start, min(start + BATCH, items)))
        self._items = items

    @torch.no_grad()
    def update(self, state: State, items: Array) -> None:
        """Quantizes these items again after their states changed."""
        rows = np.ascontiguousarray(self.model.item_matrix(torch.from_numpy(items), state).float().numpy())
        count = int(items.max(initial=-1)) + 1
        if count > len(self._codes):
            codes, scale_bias = self._codes, self._scale_bias
            self._codes = np.zeros((2 * count, codes.shape[1]), np.int8)
            self._scale_bias = np.zeros((2 * count, 2), np.float32)
            self._codes[: len(codes)], self._scale_bias[: len(scale_bias)] = codes, scale_bias
        _quantize(items, rows, self._codes, self._scale_bias)

    @torch.no_grad()
    def top_k(
        self, base: Tensor, query: Tensor, k: int, state: State, largest: float = TENS
    ) -> tuple[Tensor, Tensor]:
        """Returns (scores, items) of the k largest base[i] + query · row i, largest first.

        Items whose base is minus infinity are excluded; the list is shorter than k where fewer are left. `largest` is
        the largest absolute value of the others.
        """
        slack = np.float32(SLACK * max(1.0, largest / TENS))
        vector, lower = np.ascontiguousarray(query.float().numpy()), np.empty(len(base), np.float32)
        error = np.float32(ROUNDING * np.abs(vector[:-1]).sum())
        blocks = np.empty((2, -(-len(base) // BLOCK)), np.float32)
        arguments = self._codes, self._scale_bias, base.numpy(), vector, error, slack, lower, blocks
        if len(base) < PARALLEL_ITEMS:
            _bound(0, 1, *arguments)
        else:
            run_in_parts(_bound, len(base), *arguments)
        # The best items of k blocks are k items: the threshold is seldom lower than that of all items.
        threshold = _kth_largest(blocks[0], k) if blocks.shape[1] >= k else -np.inf
        if threshold == -np.inf:
            threshold = _kth_largest(lower, k)
        if threshold == -np.inf:
            items = torch.nonzero(base > -torch.inf)[:, 0]
        else:
            items = torch.from_numpy(_candidates(self._scale_bias, error, slack, lower, blocks[1], threshold))
        scores = base[items] + self.model.item_matrix(items, state).float() @ query.float()
        best = scores.topk(min(k, len(items)))
        return best.values, items[best.indices]


def _kth_largest(values: Array, k: int) -> np.float32:
    """The k-th largest value, or the smallest if there are fewer."""
    at = len(values) - min(k, len(values))
    smallest_kept: np.float32 = np.partition(values, at)[at]
    return smallest_kept


@compiled
def _quantize(items: Array, rows: Array, codes: Array, scale_bias: Array) -> None:
    width = codes.shape[1]
    for k in range(len(items)):
        largest, code = np.float32(0), codes[items[k]]
        for j in range(width):
            largest = max(largest, abs(rows[k, j]))
        scale_bias[items[k], 0], scale_bias[items[k], 1] = largest / np.float32(MAX_CODE), rows[k, width]
        for j in range(width):
            code[j] = np.int8(np.rint(rows[k, j] * (np.float32(MAX_CODE) / largest))) if largest > 0 else np.int8(0)


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _bound(
    part: int,
    parts: int,
    codes: Array,
    scale_bias: Array,
    base: Array,
    query: Array,
    error: float,
    slack: float,
    lower: Array,
    blocks: Array,
) -> None:
    """lower[i]: a lower bound of the score of item i; blocks: the largest lower and upper bound of each block."""
    width, count = codes.shape[1], blocks.shape[1]
    for block in range(count * part // parts, count * (part + 1) // parts):
        largest, upper = np.float32(-np.inf), np.float32(-np.inf)
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(lower))):
            total, code = np.float32(0), codes[i]
            for j in range(width):
                total += query[j] * np.float32(code[j])
            bound = base[i] + query[width] * scale_bias[i, 1] + scale_bias[i, 0] * (total - error) - slack
            lower[i], largest = bound, max(largest, bound)
            upper = max(upper, _upper_bound(bound, error, slack, scale_bias[i, 0]))
        blocks[0, block], blocks[1, block] = largest, upper


@compiled(inline="always")
def _upper_bound(lower: np.float32, error: np.float32, slack: np.float32, scale: np.float32) -> np.float32:
    return lower + np.float32(2) * (error * scale + slack)


@compiled
def _candidates(
    scale_bias: Array, error: float, slack: float, lower: Array, upper: Array, threshold: np.float32
) -> Array:
    """Returns the items whose scores may reach the threshold; `upper` has the largest upper bound of each block."""
    items, count = np.empty(len(lower), np.int64), 0
    for block in range(len(upper)):
        if upper[block] >= threshold:
            for i in range(block * BLOCK, min((block + 1) * BLOCK, len(lower))):
                if _upper_bound(lower[i], error, slack, scale_bias[i, 0]) >= threshold:
                    items[count] = i
                    count += 1
    return items[:count].copy()
