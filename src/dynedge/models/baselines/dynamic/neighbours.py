"""Models that make the vector of a user or an item from whom it met last: what GCMC, its variants and TGAT share.

Legend: n events of a window, L neighbours kept of each entity (models/histories.py), R rows of the arena.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dynedge.data.windows import Window
from dynedge.models.base import LogShape, State
from dynedge.models.dynamic import DynamicModel, Forward
from dynedge.models.ring_buffer import History, Indexed, Rings
from dynedge.models.window_index import WindowIndex
from dynedge.utils.arrays import Array


@dataclass(frozen=True, eq=False)
class NeighbourIndex(WindowIndex):
    """A window, with what its users and its items met before each event."""

    rings: tuple[Indexed, Indexed]


class NeighbourModel(DynamicModel):
    def __init__(self, config: Any, shape: LogShape) -> None:
        super().__init__(config, shape)
        sizes = shape.users, shape.items
        self.rings = tuple(Rings(side, count, config.neighbours) for side, count in enumerate(sizes))

    def start(self) -> State:
        users, items = (rings.start(self.like.device) for rings in self.rings)
        return State(users | items)

    def prepare(self, window: Window) -> NeighbourIndex:
        device = self.like.device
        users, items = (rings.index(window, device, self.entering(rings.side, window)) for rings in self.rings)
        return NeighbourIndex(**vars(super().prepare(window)), rings=(users, items))

    def entering(self, side: int, window: Window) -> Array | None:
        """bool[n]: which of the events a side remembers; None: all of them."""
        return None

    def histories(self, index: WindowIndex, state: State) -> list[History]:
        """Before each event, of its user and of its item."""
        assert isinstance(index, NeighbourIndex)
        return [rings.before(indexed, state) for rings, indexed in zip(self.rings, index.rings, strict=True)]

    def now(self, side: int, entities: Tensor, state: State) -> History:
        return self.rings[side].now(entities, state)

    @torch.no_grad()
    def advance(self, index: WindowIndex, forward: Forward, state: State) -> None:
        assert isinstance(index, NeighbourIndex)
        for rings, indexed in zip(self.rings, index.rings, strict=True):
            rings.advance(indexed, state)


def after(history: History, indexed: Indexed) -> History:
    """What the histories before a window's events are when the events are over."""
    columns, entering = ((history.partner, indexed.partner), (history.time, indexed.time)), indexed.entering[:, None]
    return History(*(torch.where(entering, torch.cat([new[:, None], old[:, :-1]], 1), old) for old, new in columns))


def arena(index: WindowIndex, at_start: Tensor, moved: Tensor) -> Tensor:
    """[R, d]: the vectors of the window's items at its start, and those they have after its events."""
    users, items = (len(ids) for ids in index.roots[:2])
    rows = torch.cat([torch.arange(users, users + items, device=moved.device), index.after])
    return moved.new_zeros(index.rows, moved.shape[1]).index_copy(0, rows, torch.cat([at_start, moved]))
