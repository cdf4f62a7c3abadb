"""Ring buffers of the last events of every user or item, and the history of each event of a window.

Legend: n events of a window, N entities of one side, L events stored per entity.

A history is newest first: column j holds the partner and the time of the entity's event j + 1 ago, or −1 where there
is none. A compiled pass (`RingBuffers.index`) finds which of a window's own events are in the history of a later one;
it does not read the state, so it may run ahead in a thread. Events before the window are gathered from the ring
buffers, on whichever device these are. Nothing here is learned: the content of the ring buffers depends neither on
the parameters nor on how the log is divided into windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.errors import DataError
from dynedge.models.base import State
from dynedge.models.state_checks import check_tensor
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

NONE = -1  # there is no such event
SIDES = "user", "item"


class History(NamedTuple):
    """The last events of entities, newest first."""

    partner: Tensor  # int64[n, L]
    time: Tensor  # float64[n, L]


class RingIndex(NamedTuple):
    """A window's events indexed for the ring buffers of one side. Positions are local to the window."""

    entity: Tensor  # int64[n]
    partner: Tensor  # int64[n]
    time: Tensor  # float64[n]
    is_stored: Tensor  # bool[n]: whether the event is written to the ring buffers
    in_window: Tensor  # int64[n, L]: position of the entity's event j + 1 ago if it is in the window, else NONE
    num_before: Tensor  # int64[n]: number of the entity's stored events that precede this one in the window
    surviving: Tensor  # int64[..]: stored events that are still in the ring buffers when the window ends
    last: Tensor  # int64[..]: the last stored event of each entity


@dataclass(frozen=True)
class RingBuffers:
    """The last `length` events of each entity of a side. Event number c of an entity is in slot c mod L."""

    side: int
    entities: int
    length: int

    def _key(self, part: str) -> str:
        return f"{SIDES[self.side]}_{part}"

    def start(self, device: torch.device) -> State:
        """Empty ring buffers."""
        shape = self.entities, self.length
        return State(
            {
                self._key("partners"): torch.full(shape, NONE, dtype=torch.int32, device=device),
                self._key("times"): torch.full(shape, float(NONE), dtype=torch.float64, device=device),
                self._key("event_counts"): torch.zeros(self.entities, dtype=torch.int64, device=device),
            }
        )

    def check(self, state: State, partners: int) -> None:
        """Raises DataError unless ring buffers from a file are in range; `partners` is the size of the other side."""
        shape = self.entities, self.length
        stored = check_tensor(state, self._key("partners"), torch.int32, shape, NONE, partners - 1)
        check_tensor(state, self._key("times"), torch.float64, shape, NONE)
        counts = check_tensor(state, self._key("event_counts"), torch.int64, (self.entities,), 0, 2**53)
        is_stored = torch.arange(self.length) < counts[:, None]
        if bool((stored < 0).logical_and_(is_stored).any()):
            raise DataError(f"'{self._key('partners')}' has fewer events than its counts say")

    def index(self, window: Window, device: torch.device, is_stored: Array | None = None) -> RingIndex:
        """Indexes a window; `is_stored` bool[n] selects the events to store, None: all of them."""
        sides = (window.user, window.item)[:: -1 if self.side else 1]
        is_stored = np.ones(len(window), np.bool_) if is_stored is None else is_stored
        in_window, num_before, num_after = link_window(sides[0], is_stored, self.entities, self.length)
        surviving = np.flatnonzero((num_after >= 0) & (num_after < self.length))
        arrays = *sides, window.time, is_stored, in_window, num_before, surviving, np.flatnonzero(num_after == 0)
        arrays64 = [array.astype(np.int64) if array.dtype.kind == "i" else array for array in arrays]
        return RingIndex(*(torch.from_numpy(array).to(device) for array in arrays64))

    def history_before(self, index: RingIndex, state: State) -> History:
        """The history of each event's entity just before the event, from the window or from the ring buffers."""
        stored = self._gather(index.entity, index.num_before, state)
        in_window, position = index.in_window >= 0, index.in_window.clamp_min(0)
        return History(
            torch.where(in_window, index.partner[position], stored.partner),
            torch.where(in_window, index.time[position], stored.time),
        )

    def current_history(self, entities: Tensor, state: State) -> History:
        """The histories of entities in this state."""
        return self._gather(entities, torch.zeros_like(entities), state)

    def _gather(self, entity: Tensor, num_before: Tensor, state: State) -> History:
        """Histories from the ring buffers; their newest `num_before` columns, which are in the window, are NONE."""
        exists, slot = self.slots(entity, num_before, state)
        partner, time = (state[self._key(part)][entity[:, None], slot] for part in ("partners", "times"))
        return History(partner.long().masked_fill_(~exists, NONE), time.masked_fill_(~exists, NONE))

    def slots(self, entity: Tensor, num_before: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """(bool[n, L], int64[n, L]): whether the event j + 1 ago is in the ring buffers, and its slot."""
        count = state[self._key("event_counts")][entity][:, None]
        age = torch.arange(self.length, device=entity.device) - num_before[:, None]
        return (age >= 0) & (age < count), (count - 1 - age) % self.length

    def advance(self, index: RingIndex, state: State) -> None:
        """Writes the window's events to the ring buffers."""
        counts, entity, last = state[self._key("event_counts")], index.entity, index.last
        positions, surviving = self.write_positions(index, state), index.surviving
        state[self._key("partners")][positions] = index.partner[surviving].int()
        state[self._key("times")][positions] = index.time[surviving]
        counts[entity[last]] += index.num_before[last] + 1

    def write_positions(self, index: RingIndex, state: State) -> tuple[Tensor, Tensor]:
        """Entity and slot of each surviving event, for a state that has not advanced past the window yet."""
        entity = index.entity[index.surviving]
        count = state[self._key("event_counts")][entity]
        return entity, (count + index.num_before[index.surviving]) % self.length


def link_window(entity: Array, is_stored: Array, entities: int, length: int) -> tuple[Array, Array, Array]:
    """int32[n, L], [n], [n]: the entity's events j + 1 ago in the window; numbers of preceding and following ones.

    Only stored events count. For an event that is not stored, the number of following events is NONE.
    """
    in_window = np.full((len(entity), length), NONE, np.int32)
    num_before, num_after = np.zeros(len(entity), np.int32), np.full(len(entity), NONE, np.int32)
    _link(entity, is_stored, np.full(entities, NONE, np.int32), in_window, num_before, num_after)
    return in_window, num_before, num_after


@compiled
def _link(
    entity: Array, is_stored: Array, last: Array, in_window: Array, num_before: Array, num_after: Array
) -> None:
    for k in range(len(entity)):
        previous = last[entity[k]]
        if previous >= 0:
            num_before[k] = num_before[previous] + 1
            in_window[k, 0] = previous
            in_window[k, 1:] = in_window[previous, :-1]
        if is_stored[k]:
            last[entity[k]] = k
    for k in range(len(entity)):
        if is_stored[k]:
            num_after[k] = num_before[last[entity[k]]] - num_before[k]


class HistoryLookup:
    """Histories of any of a log's first `end` events, in any order, for models trained on shuffled events.

    The events are sorted by entity once, so that an event's history directly precedes it.
    """

    def __init__(self, log: EventLog, end: int, side: int, length: int, device: torch.device) -> None:
        self.end = end
        entity, partner = (np.asarray(ids[:end]) for ids in (log.user, log.item)[:: -1 if side else 1])
        order = np.argsort(entity, kind="stable")
        position = np.empty(end, np.int64)
        position[order] = np.arange(end)
        arrays = entity[order].astype(np.int32), partner[order].astype(np.int32), position, np.arange(length)
        self._entity, self._partner, self._position, self._age = (torch.from_numpy(a).to(device) for a in arrays)

    def histories(self, events: Tensor) -> Tensor:
        """int64[n, L]: the partners of each event's entity before the event, newest first."""
        position = self._position[events][:, None]
        previous = (position - 1 - self._age).clamp_min_(0)
        exists = (self._entity[previous] == self._entity[position]) & (position > self._age)
        return self._partner[previous].long().masked_fill_(~exists, NONE)

    def partners(self, events: Tensor) -> Tensor:
        """int64[n]: the partner of each event."""
        return self._partner[self._position[events]].long()
