"""What is known of the events that a state has taken in, whatever the model: how many, until when, of which items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from dynedge.data.log import EventLog
from dynedge.utils.arrays import Array
from dynedge.utils.tensor_io import Tensors

PIECE = 1 << 20  # events looked at together


@dataclass
class Known:
    events: int
    time: float  # of the newest event; -inf where there is none
    items: Array  # int64[items, or more]: events of each

    @classmethod
    def nothing(cls, items: int) -> Known:
        return cls(0, -np.inf, np.zeros(items, np.int64))

    def add(self, log: EventLog, events: range) -> None:
        """These events of a log were taken in too. Of a long log, a piece at a time is in memory."""
        for piece in _pieces(events):
            np.add.at(self.items, log.item[piece], 1)
            self.time = max(self.time, float(log.time[piece].max()))
        self.events += len(events)

    def grow(self, items: int) -> None:
        """Room for so many items, or more: none of the new ones has been met."""
        if items > len(self.items):
            self.items = np.concatenate([self.items, np.zeros(2 * items - len(self.items), np.int64)])

    def tensors(self) -> Tensors:
        return {
            "events": torch.tensor(self.events),
            "time": torch.tensor(self.time, dtype=torch.float64),
            "items": torch.from_numpy(self.items),
        }

    @classmethod
    def of(cls, tensors: Tensors) -> Known:
        return cls(int(tensors["events"]), float(tensors["time"]), tensors["items"].numpy())


def _pieces(events: range) -> Iterator[slice]:
    for start in range(events.start, events.stop, PIECE):
        yield slice(start, min(start + PIECE, events.stop))
