"""Models that make the vector of a user or an item from whom it met last: what GCMC, its variants and TGAT share.

Legend: n events of a window, L neighbours kept of each entity (models/histories.py), R rows of the arena.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dynedge.data.windows import Window
from dynedge.models.base import State
from dynedge.models.dynamic import Asked, Moving
from dynedge.models.modules import Shape
from dynedge.models.ring_buffer import History, Indexed, Rings
from dynedge.models.window_index import Prepared
from dynedge.utils.arrays import Array


@dataclass(frozen=True, eq=False)
class Met(Prepared):
    """A window, with what its users and its items met before each event."""

    met: tuple[Indexed, Indexed]


class Neighbours(Moving):
    def __init__(self, shape: Shape, windows: int, negatives: int, full_up_to: int, neighbours: int) -> None:
        super().__init__(shape, windows, negatives, full_up_to)
        self.rings = tuple(Rings(side, count, neighbours) for side, count in enumerate((shape.users, shape.items)))

    def start(self) -> State:
        users, items = (rings.start(self.like.device) for rings in self.rings)
        return State(users | items)

    def prepare(self, window: Window) -> Met:
        device = self.like.device
        users, items = (rings.index(window, device, self.entering(rings.side, window)) for rings in self.rings)
        return Met(**vars(super().prepare(window)), met=(users, items))

    def entering(self, side: int, window: Window) -> Array | None:
        """bool[n]: which of the events a side remembers; None: all of them."""
        return None

    def histories(self, prepared: Prepared, state: State) -> list[History]:
        """Before each event, of its user and of its item."""
        assert isinstance(prepared, Met)
        return [rings.before(indexed, state) for rings, indexed in zip(self.rings, prepared.met, strict=True)]

    def now(self, side: int, entities: Tensor, state: State) -> History:
        return self.rings[side].now(entities, state)

    @torch.no_grad()
    def advance(self, prepared: Prepared, asked: Asked, state: State) -> None:
        assert isinstance(prepared, Met)
        for rings, indexed in zip(self.rings, prepared.met, strict=True):
            rings.advance(indexed, state)


def after(history: History, indexed: Indexed) -> History:
    """What the histories before a window's events are when the events are over."""
    columns, entering = ((history.partner, indexed.partner), (history.time, indexed.time)), indexed.entering[:, None]
    return History(*(torch.where(entering, torch.cat([new[:, None], old[:, :-1]], 1), old) for old, new in columns))


def arena(prepared: Prepared, at_start: Tensor, moved: Tensor) -> Tensor:
    """[R, d]: the vectors of the window's items at its start, and those they have after its events."""
    users, items = (len(ids) for ids in prepared.roots[:2])
    rows = torch.cat([torch.arange(users, users + items, device=moved.device), prepared.after])
    return moved.new_zeros(prepared.rows, moved.shape[1]).index_copy(0, rows, torch.cat([at_start, moved]))
