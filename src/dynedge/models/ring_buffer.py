"""The last events of every user or item: in the State as rings, and as they were before each event of a window.

Legend: n events of a window, N entities of one side, L events remembered of each.

A history is newest first: column j has the partner of the entity's event j + 1 ago, and its time; −1 where there is
none. Which of a window's own events are in the history of a later one, a compiled pass finds without the state
(`index`), so that it may run ahead; what came before the window is read from the rings by a few gathers, wherever
they are. Nothing here is learned: a State of rings is the same whatever the parameters, and however the log is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.base import State
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

NONE = -1  # no event so long ago
SIDES = "user", "item"


class History(NamedTuple):
    """What entities met, newest first."""

    partner: Tensor  # int64[n, L]
    time: Tensor  # float64[n, L]


class Indexed(NamedTuple):
    """A window as one side's rings see it. Positions are local to the window."""

    entity: Tensor  # int64[n]
    partner: Tensor  # int64[n]
    time: Tensor  # float64[n]
    entering: Tensor  # bool[n]: the events that are remembered
    inside: Tensor  # int64[n, L]: the entity's event j + 1 ago, where it is in the window, else NONE
    earlier: Tensor  # int64[n]: how many events of the window the entity has had before
    kept: Tensor  # int64[..]: the events that are still in the rings when the window is over
    last: Tensor  # int64[..]: the last event of each entity met


@dataclass(frozen=True)
class Rings:
    """The last `length` events of each entity of a side. An entity's event number c is in slot c mod L."""

    side: int
    entities: int
    length: int

    def _name(self, part: str) -> str:
        return f"{SIDES[self.side]}_{part}"

    def start(self, device: torch.device) -> State:
        shape = self.entities, self.length
        return State(
            {
                self._name("partners"): torch.full(shape, NONE, dtype=torch.int32, device=device),
                self._name("times"): torch.full(shape, float(NONE), dtype=torch.float64, device=device),
                self._name("events"): torch.zeros(self.entities, dtype=torch.int64, device=device),
            }
        )

    def index(self, window: Window, device: torch.device, entering: Array | None = None) -> Indexed:
        """`entering` bool[n]: the events that are remembered; None: all of them."""
        sides = (window.user, window.item)[:: -1 if self.side else 1]
        entering = np.ones(len(window), np.bool_) if entering is None else entering
        inside, earlier, later = inside_window(sides[0], entering, self.entities, self.length)
        ends = np.flatnonzero((later >= 0) & (later < self.length)), np.flatnonzero(later == 0)
        arrays = *sides, window.time, entering, inside, earlier, *ends
        kinds = [array.astype(np.int64) if array.dtype.kind == "i" else array for array in arrays]
        return Indexed(*(torch.from_numpy(array).to(device) for array in kinds))

    def before(self, indexed: Indexed, state: State) -> History:
        """The history of each event of a window: what its entity met before it, in the window or earlier."""
        found = self._read(indexed.entity, indexed.earlier, state)
        inside, position = indexed.inside >= 0, indexed.inside.clamp_min(0)
        return History(
            torch.where(inside, indexed.partner[position], found.partner),
            torch.where(inside, indexed.time[position], found.time),
        )

    def now(self, entities: Tensor, state: State) -> History:
        """The histories of entities as they stand."""
        return self._read(entities, torch.zeros_like(entities), state)

    def _read(self, entity: Tensor, earlier: Tensor, state: State) -> History:
        """Where the newest `earlier` columns are not in the rings yet."""
        there, slot = self.slots(entity, earlier, state)
        partner, time = (state[self._name(part)][entity[:, None], slot] for part in ("partners", "times"))
        return History(partner.long().masked_fill_(~there, NONE), time.masked_fill_(~there, NONE))

    def slots(self, entity: Tensor, earlier: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """(bool[n, L], int64[n, L]): whether the event j + 1 ago is in the rings, and in which slot."""
        events = state[self._name("events")][entity][:, None]
        ago = torch.arange(self.length, device=entity.device) - earlier[:, None]
        return (ago >= 0) & (ago < events), (events - 1 - ago) % self.length

    def advance(self, indexed: Indexed, state: State) -> None:
        """The rings move past the window."""
        events, entity, last = state[self._name("events")], indexed.entity, indexed.last
        at, kept = self.places(indexed, state), indexed.kept
        state[self._name("partners")][at] = indexed.partner[kept].int()
        state[self._name("times")][at] = indexed.time[kept]
        events[entity[last]] += indexed.earlier[last] + 1

    def places(self, indexed: Indexed, state: State) -> tuple[Tensor, Tensor]:
        """Entity and slot of the events that are kept, before the rings move past the window."""
        entity = indexed.entity[indexed.kept]
        return entity, (state[self._name("events")][entity] + indexed.earlier[indexed.kept]) % self.length


def inside_window(entity: Array, entering: Array, entities: int, length: int) -> tuple[Array, Array, Array]:
    """int32[n, L], [n], [n]: the entity's events j + 1 ago in the window; how many it had before; how many after.

    Only events that enter are counted; of the others, how many came after is told as NONE.
    """
    inside = np.full((len(entity), length), NONE, np.int32)
    earlier, later = np.zeros(len(entity), np.int32), np.full(len(entity), NONE, np.int32)
    _inside(entity, entering, np.full(entities, NONE, np.int32), inside, earlier, later)
    return inside, earlier, later


@compiled
def _inside(entity: Array, entering: Array, last: Array, inside: Array, earlier: Array, later: Array) -> None:
    for k in range(len(entity)):
        before = last[entity[k]]
        if before >= 0:
            earlier[k] = earlier[before] + 1
            inside[k, 0] = before
            inside[k, 1:] = inside[before, :-1]
        if entering[k]:
            last[entity[k]] = k
    for k in range(len(entity)):
        if entering[k]:
            later[k] = earlier[last[entity[k]]] - earlier[k]


class Past:
    """The histories of any of a log's first `end` events, in any order: for models that learn from shuffled events.

    The events are sorted by entity once; an event's history stands just before it.
    """

    def __init__(self, log: EventLog, end: int, side: int, length: int) -> None:
        entity, partner = (np.asarray(ids[:end]) for ids in (log.user, log.item)[:: -1 if side else 1])
        order = np.argsort(entity, kind="stable")
        self.entity, self.partner, self.length = entity[order], partner[order], length
        self.place = np.empty(end, np.int64)
        self.place[order] = np.arange(end)

    def before(self, events: Array) -> Array:
        """int64[n, L]: what the events' entities met before them, newest first."""
        place = self.place[events][:, None]
        earlier = np.maximum(place - 1 - np.arange(self.length), 0)
        own = (self.entity[earlier] == self.entity[place]) & (place > np.arange(self.length))
        return np.where(own, self.partner[earlier], NONE).astype(np.int64)
