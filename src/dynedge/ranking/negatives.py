"""The items an event's own is ranked among under a sampled protocol.

They are a function of the seed, the event's position and the number of items, and nothing else: every model meets the
same ones, however its events are cut into chunks. Drawn without replacement, never the true item. Where there are no
more others than that, all of them are taken.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from dynedge.ranking.draws import below, stream

Array = npt.NDArray[Any]

SEED = 499_001  # stored with every rank that was counted among these


def negatives(events: range, true: Array, num_items: int, count: int, seed: int = SEED) -> Array:
    """int64[n, min(count, num_items - 1)]: the other candidates of the events at these positions of the log."""
    drawn = np.empty((len(events), max(min(count, num_items - 1), 0)), np.int64)
    _draw(events.start, true, num_items, np.uint64(seed), np.full(max(num_items, 1), -1, np.int64), drawn)
    return drawn


@numba.njit(nogil=True, cache=True)
def _draw(start: int, true: Array, num_items: int, seed: np.uint64, taken: Array, drawn: Array) -> None:
    """Floyd's sampling from the num_items - 1 others; `taken[i]` is the last row that took the other number i."""
    count, others = drawn.shape[1], num_items - 1
    for k in range(len(drawn)):
        key = stream(seed, np.uint64(start + k))
        for j in range(count):
            last = others - count + j
            one = np.int64(below(np.uint64(last + 1), key, np.uint64(j)))
            if taken[one] == k:
                one = last
            taken[one] = k
            drawn[k, j] = one + (one >= true[k])  # the others, numbered without the true item
