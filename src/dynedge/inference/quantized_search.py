"""The exact best of many items without reading all of their vectors: first by a sketch of one byte a number.

A vector is kept as whole numbers of its own scale, so a product with it is known up to half a scale times the sum of
the query's sizes. Whatever cannot be among the best by these bounds is left out, and the rest is scored exactly.

Legend: I items, D width of a vector; an item's row is its vector and its bias, which is kept as it is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynedge.models.base import Model, State
from dynedge.ops.thread_pool import run_in_parts
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

STEPS = 127
PIECE = 1 << 14  # rows read together
MANY = 1 << 18  # items from which a second thread is worth waking
ROUNDING = 0.51  # of a scale: half of one, and what rounding in the product may add
SLACK = 1e-5  # the same for the sum with the base, which is some tens at most


class Sketch:
    def __init__(self, model: Model, state: State, items: int) -> None:
        width = model.item_rows(torch.arange(min(items, 1)), state).shape[1] - 1
        self._table = np.zeros((0, width), np.int8)
        self._beside = np.zeros((0, 2), np.float32)  # scale, bias
        self._items = 0
        self.grow(model, state, items)

    def grow(self, model: Model, state: State, items: int) -> None:
        """Items that came since are sketched too."""
        for start in range(self._items, items, PIECE):
            self.update(model, state, np.arange(start, min(start + PIECE, items)))
        self._items = items

    @torch.no_grad()
    def update(self, model: Model, state: State, items: Array) -> None:
        """These items have moved."""
        rows = np.ascontiguousarray(model.item_rows(torch.from_numpy(items), state).float().numpy())
        most = int(items.max(initial=-1)) + 1
        if most > len(self._table):
            table, beside = self._table, self._beside
            self._table, self._beside = (
                np.zeros((2 * most, table.shape[1]), np.int8),
                np.zeros((2 * most, 2), np.float32),
            )
            self._table[: len(table)], self._beside[: len(beside)] = table, beside
        _sketch(items, rows, self._table, self._beside)

    @torch.no_grad()
    def best(self, base: Tensor, query: Tensor, k: int, model: Model, state: State) -> tuple[Tensor, Tensor]:
        """(scores, items) of the k largest base[i] + query · row of i, the largest first."""
        asked, least = np.ascontiguousarray(query.float().numpy()), np.empty(len(base), np.float32)
        off = np.float32(ROUNDING * np.abs(asked[:-1]).sum())
        given = self._table, self._beside, base.numpy(), asked, off, least
        if len(base) < MANY:
            _at_least(0, 1, *given)
        else:
            run_in_parts(_at_least, len(base), *given)
        bar = torch.from_numpy(least).topk(min(k, len(base))).values[-1]
        items = torch.from_numpy(_may_reach(self._beside, off, least, float(bar)))
        scores = base[items] + model.item_rows(items, state).float() @ query.float()
        found = scores.topk(min(k, len(base)))
        return found.values, items[found.indices]


@compiled
def _sketch(items: Array, rows: Array, table: Array, beside: Array) -> None:
    width = table.shape[1]
    for k in range(len(items)):
        most, to = np.float32(0), table[items[k]]
        for j in range(width):
            most = max(most, abs(rows[k, j]))
        beside[items[k], 0], beside[items[k], 1] = most / np.float32(STEPS), rows[k, width]
        for j in range(width):
            to[j] = np.int8(np.rint(rows[k, j] * (np.float32(STEPS) / most))) if most > 0 else np.int8(0)


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _at_least(
    part: int, parts: int, table: Array, beside: Array, base: Array, query: Array, off: float, out: Array
) -> None:
    """out[i]: what the score of item i is at least."""
    width = table.shape[1]
    for i in range(len(out) * part // parts, len(out) * (part + 1) // parts):
        total, row = np.float32(0), table[i]
        for j in range(width):
            total += query[j] * np.float32(row[j])
        out[i] = base[i] + query[width] * beside[i, 1] + beside[i, 0] * (total - off) - np.float32(SLACK)


@compiled
def _may_reach(beside: Array, off: float, least: Array, bar: float) -> Array:
    """The items whose scores may be as high as the bar."""
    found, count = np.empty(len(least), np.int64), 0
    for i in range(len(least)):
        if least[i] + 2 * (off * beside[i, 0] + SLACK) >= bar:
            found[count] = i
            count += 1
    return found[:count]
