"""NeighbourModel: base of models that compute an entity's vector from its last neighbours: GCMC, its variants, TGAT.

Legend: n events of a window, L neighbours stored per entity (models/ring_buffer.py), R rows of the arena.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dynedge.data.windows import Window
from dynedge.models.base import LogShape, State
from dynedge.models.dynamic_base import DynamicModel, Forward
from dynedge.models.ring_buffer import History, RingBuffers, RingIndex
from dynedge.models.state_checks import check_like
from dynedge.models.window_index import WindowIndex
from dynedge.utils.array_type import Array


@dataclass(frozen=True, eq=False)
class NeighbourIndex(WindowIndex):
    """A window, indexed also for the ring buffers of users and of items."""

    rings: tuple[RingIndex, RingIndex]


class NeighbourModel(DynamicModel):
    def __init__(self, config: Any, shape: LogShape) -> None:
        super().__init__(config, shape)
        sizes = shape.users, shape.items
        self.ring_buffers = tuple(RingBuffers(side, count, config.neighbours) for side, count in enumerate(sizes))

    def start(self) -> State:
        users, items = (buffers.start(self.like.device) for buffers in self.ring_buffers)
        return State(users | items)

    def check_state(self, state: State) -> None:
        check_like(state, self.start())
        for buffers, partners in zip(self.ring_buffers, (self.shape.items, self.shape.users), strict=True):
            buffers.check(state, partners)

    def prepare(self, window: Window) -> NeighbourIndex:
        device = self.like.device
        users, items = (
            buffers.index(window, device, self.stored_events(buffers.side, window)) for buffers in self.ring_buffers
        )
        return NeighbourIndex(**vars(super().prepare(window)), rings=(users, items))

    def stored_events(self, side: int, window: Window) -> Array | None:
        """bool[n]: the events that are written to a side's ring buffers; None: all of them."""
        return None

    def histories_before(self, index: WindowIndex, state: State) -> list[History]:
        """The histories of each event's user and of its item just before the event."""
        assert isinstance(index, NeighbourIndex)
        return [
            buffers.history_before(ring, state) for buffers, ring in zip(self.ring_buffers, index.rings, strict=True)
        ]

    def current_history(self, side: int, entities: Tensor, state: State) -> History:
        return self.ring_buffers[side].current_history(entities, state)

    @torch.no_grad()
    def advance(self, index: WindowIndex, forward: Forward, state: State) -> None:
        assert isinstance(index, NeighbourIndex)
        for buffers, ring in zip(self.ring_buffers, index.rings, strict=True):
            buffers.advance(ring, state)


def history_after(history: History, ring: RingIndex) -> History:
    """The histories just after a window's events, from those just before them."""
    columns, is_stored = ((history.partner, ring.partner), (history.time, ring.time)), ring.is_stored[:, None]
    return History(*(torch.where(is_stored, torch.cat([new[:, None], old[:, :-1]], 1), old) for old, new in columns))


def item_arena(index: WindowIndex, initial: Tensor, updated: Tensor) -> Tensor:
    """[R, d]: the vectors of the window's items at its start, and those after each event; the users' rows are 0."""
    users, items = (len(ids) for ids in index.roots[:2])
    rows = torch.cat([torch.arange(users, users + items, device=updated.device), index.after])
    return updated.new_zeros(index.rows, updated.shape[1]).index_copy(0, rows, torch.cat([initial, updated]))
