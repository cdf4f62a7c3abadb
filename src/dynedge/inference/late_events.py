"""Policy for late events: an event older than the last event of its user or item gets that last event's time.

Events are applied in the order of arrival; nothing is reordered. Raising a late event's time keeps every entity's
clock monotonic.
"""

from __future__ import annotations

import numpy as np
import torch

from dynedge.data.timestamps import LATEST_TIME
from dynedge.errors import DataError
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled
from dynedge.utils.tensor_io import Tensors


class LateEventPolicy:
    """Time of the last event of every user and item.

    A run folder does not store when each entity was last active, so all of them start at `newest`, the time of the
    newest training event.
    """

    def __init__(self, users: int, items: int, newest: float) -> None:
        self._last_time = [np.full(users, newest), np.full(items, newest)]

    def grow(self, users: int, items: int) -> None:
        """Adds entities that have no event yet; capacity doubles."""
        for side, count in enumerate((users, items)):
            last = self._last_time[side]
            if count > len(last):
                self._last_time[side] = np.concatenate([last, np.full(2 * count - len(last), -np.inf)])

    def apply(self, user: Array, item: Array, time: Array) -> tuple[Array, Array]:
        """Records events in order; returns their effective times, float64[n], and which are late, bool[n]."""
        effective, late = np.empty(len(time)), np.empty(len(time), np.bool_)
        _apply(*self._last_time, user, item, time, effective, late)
        return effective, late

    def effective_time(self, user: Array, item: Array, time: Array) -> Array:
        """Returns the effective time of each event on its own; records nothing."""
        return np.asarray(np.maximum(time, np.maximum(self._last_time[0][user], self._last_time[1][item])))

    def tensors(self) -> Tensors:
        return {name: torch.from_numpy(last) for name, last in zip(("user", "item"), self._last_time, strict=True)}

    @classmethod
    def from_tensors(cls, tensors: Tensors, users: int, items: int) -> LateEventPolicy:
        """The inverse of `tensors`, for at least so many users and items; DataError if they do not fit."""
        for name, count in (("user", users), ("item", items)):
            last = tensors.get(name)
            if last is None or last.dtype != torch.float64 or last.dim() != 1 or len(last) < count:
                raise DataError(f"it has no times of the last events of each {name}")
            if not bool((last <= LATEST_TIME).all()):
                raise DataError(f"the time of the last event of a {name} is not a time before the year 2200")
        policy = cls(0, 0, 0.0)
        policy._last_time = [tensors["user"].numpy(), tensors["item"].numpy()]
        return policy


@compiled
def _apply(
    last_user: Array, last_item: Array, user: Array, item: Array, time: Array, effective: Array, late: Array
) -> None:
    for k in range(len(time)):
        last = max(last_user[user[k]], last_item[item[k]])
        late[k] = time[k] < last
        effective[k] = max(time[k], last)
        last_user[user[k]] = last_item[item[k]] = effective[k]
