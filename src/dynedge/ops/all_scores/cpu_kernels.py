"""Scores of a block of events, items by events.

Legend: I items, b events of the block (filled up to whole vectors), d width of a state; `own` has no rows where there
are no ids. Every sum is the same wherever it is taken: bias, plus the state's product, plus the id's.
"""

from __future__ import annotations

import numpy as np

from dynedge.ops.gather_matmul import add_products
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled


@compiled
def products(
    part: int, parts: int, out: Array, at: int, states: Array, own: Array, for_state: Array, for_id: Array
) -> None:
    """out[:, at : at + b] of this part's items."""
    rows = np.arange(len(states) * part // parts, len(states) * (part + 1) // parts)
    _fill(out, at, rows, states, own, rows, for_state, for_id)


@compiled
def move(
    out: Array,
    at: int,
    states: Array,
    own: Array,
    for_state: Array,
    for_id: Array,
    item: Array,
    row: Array,
    arena: Array,
) -> None:
    """An item that moves has its new state's scores from the next event on; `states` moves with it."""
    fresh, only = np.empty((1, for_state.shape[1]), out.dtype), np.zeros(1, np.int64)
    for k in range(len(item)):
        if row[k] < 0:
            continue
        one = item[k : k + 1]
        states[one[0]] = arena[row[k]]
        _fill(fresh, 0, only, states, own, one, for_state, for_id)
        out[one[0], at + k + 1 : at + len(item)] = fresh[0, k + 1 : len(item)]


@compiled
def _fill(
    out: Array, at: int, to: Array, states: Array, own: Array, of: Array, for_state: Array, for_id: Array
) -> None:
    """out[to[i], at : at + b]: the scores of the items `of`."""
    width, d = for_state.shape[1], states.shape[1]
    for i in range(len(to)):
        out[to[i], at : at + width] = own[of[i], d] if len(own) else 0
    add_products(out, at, to, states, 0, of, len(to), for_state)
    if len(own):
        add_products(out, at, to, own, 0, of, len(to), for_id)
