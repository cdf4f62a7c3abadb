"""When each user and each item was last met, and what becomes of an event that is older than that.

Events are taken in as they arrive; nothing is reordered. One whose time is before the last event of its user or its
item is late: it counts as having come at that last event's time, so that no entity's time runs backwards.
"""

from __future__ import annotations

import numpy as np
import torch

from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled
from dynedge.utils.tensor_io import Tensors


class Clock:
    """`newest`: of what the run learned from. When each of its entities came is not known, so they all came then."""

    def __init__(self, users: int, items: int, newest: float) -> None:
        self._last = [np.full(users, newest), np.full(items, newest)]

    def grow(self, users: int, items: int) -> None:
        """New entities have not been met. There may be room for more."""
        for side, count in enumerate((users, items)):
            last = self._last[side]
            if count > len(last):
                self._last[side] = np.concatenate([last, np.full(2 * count - len(last), -np.inf)])

    def take(self, user: Array, item: Array, time: Array) -> tuple[Array, Array]:
        """(float64[n], bool[n]): the times the events count as, and which of them are late."""
        counted, late = np.empty(len(time)), np.empty(len(time), np.bool_)
        _take(*self._last, user, item, time, counted, late)
        return counted, late

    def raised(self, user: Array, item: Array, time: Array) -> Array:
        """The times that events would count as, each by itself; nothing is taken in."""
        return np.asarray(np.maximum(time, np.maximum(self._last[0][user], self._last[1][item])))

    def tensors(self) -> Tensors:
        return {name: torch.from_numpy(last) for name, last in zip(("user", "item"), self._last, strict=True)}

    @classmethod
    def of(cls, tensors: Tensors) -> Clock:
        clock = cls(0, 0, 0.0)
        clock._last = [tensors["user"].numpy(), tensors["item"].numpy()]
        return clock


@compiled
def _take(users: Array, items: Array, user: Array, item: Array, time: Array, counted: Array, late: Array) -> None:
    for k in range(len(time)):
        last = max(users[user[k]], items[item[k]])
        late[k] = time[k] < last
        counted[k] = max(time[k], last)
        users[user[k]] = items[item[k]] = counted[k]
