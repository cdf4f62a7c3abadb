"""Coverage: how many events a state has consumed, up to which time, and how many of each item."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from dynedge.data.log import EventLog
from dynedge.data.timestamps import LATEST_TIME
from dynedge.errors import DataError
from dynedge.models.base import State
from dynedge.models.state_checks import at_least, check_names, check_tensor
from dynedge.utils.array_type import Array
from dynedge.utils.tensor_io import Tensors

CHUNK = 1 << 20  # events read into memory at once


@dataclass
class Coverage:
    """The events that a state has consumed."""

    events: int
    last_time: float  # time of the newest event; -inf if there is none
    item_counts: Array  # int64[items or more]: events per item

    @classmethod
    def empty(cls, items: int) -> Coverage:
        return cls(0, -np.inf, np.zeros(items, np.int64))

    def add(self, log: EventLog, events: range) -> None:
        """Adds events of a log, one chunk at a time, so that a long log need not fit in memory."""
        if len(events) == 1:
            self.item_counts[log.item[events.start]] += 1
            self.last_time = max(self.last_time, float(log.time[events.start]))
            self.events += 1
            return
        for chunk in _chunks(events):
            np.add.at(self.item_counts, log.item[chunk], 1)
            self.last_time = max(self.last_time, float(log.time[chunk].max()))
        self.events += len(events)

    def grow(self, items: int) -> None:
        """Makes room for at least `items` items; new items have a count of 0."""
        if items > len(self.item_counts):
            added = np.zeros(2 * items - len(self.item_counts), np.int64)
            self.item_counts = np.concatenate([self.item_counts, added])

    def tensors(self) -> Tensors:
        """Returns the fields as tensors."""
        return {
            "events": torch.tensor(self.events),
            "last_time": torch.tensor(self.last_time, dtype=torch.float64),
            "item_counts": torch.from_numpy(self.item_counts),
        }

    @classmethod
    def from_tensors(cls, tensors: Tensors, items: int) -> Coverage:
        """The inverse of `tensors`, for at least `items` items; DataError if tensors of a file do not fit."""
        state = State(tensors)
        check_names(state, ("events", "last_time", "item_counts"))
        check_tensor(state, "events", torch.int64, (), 0)
        check_tensor(state, "item_counts", torch.int64, (at_least(items),), 0)
        if int(state["item_counts"].sum()) != int(state["events"]):
            raise DataError("'events' is not the sum of 'item_counts'")
        last_time = state["last_time"]
        if last_time.dtype != torch.float64 or last_time.shape or not float(last_time) <= LATEST_TIME:
            raise DataError("'last_time' is not a time before the year 2200")
        return cls(int(tensors["events"]), float(last_time), tensors["item_counts"].numpy())


def _chunks(events: range) -> Iterator[slice]:
    for start in range(events.start, events.stop, CHUNK):
        yield slice(start, min(start + CHUNK, events.stop))
