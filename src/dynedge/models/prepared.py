"""A window with every index the recurrence needs, made once, ahead of training and on its device.

Legend: n events of a window, W states written, M distinct items, B users that begin (first event in the window).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dynedge.models.contract import Window
from dynedge.plan.schedule import Schedule

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Last:
    """The last event of each user, or of each item, of the window."""

    entity: Tensor  # int64
    time: Tensor  # float64
    item: Tensor  # int64: the event's item


@dataclass(frozen=True, eq=False)
class Prepared:
    window: Window
    schedule: Schedule
    first_phi: int  # where the window's d-nodes start in the table of φ
    user: Tensor  # int64[n]
    item: Tensor  # int64[n]
    roots: tuple[Tensor, Tensor, Tensor, Tensor]  # int64: entry users, entry items, ψ users, ψ items
    reads: tuple[Tensor, Tensor]  # int64[n]: the rows of the event's user and item
    exits: tuple[Tensor, Tensor]  # int64: the rows of the entry users' and items' last states
    targets: Tensor  # int64[K]: the rows that φ should equal
    items: Tensor  # int64[M], sorted
    item_place: Tensor  # int64[n]: where the event's item is among `items`
    begin: Tensor  # int64[B]: the users whose last item the state holds
    last_place: Tensor  # int64[n]: where the user's last item is among `items`, or M + where the user is in `begin`
    place: Tensor  # int64[W]: 2 · where its event's features are (`item_place` if by item, else the event) + side
    past: tuple[
        Tensor, Tensor
    ]  # int64[n]: the previous event of the same user and item, active or not; below 0: none
    last: tuple[Last, Last]


def index(
    window: Window, schedule: Schedule, past: Array, first_phi: int, by_item: bool, device: torch.device
) -> Prepared:
    """`by_item`: an event's features are its item's alone, and so made once an item.

    `past` int32[n, 2]: the previous event of the same user and of the same item, active or not; below 0: none.
    """

    made = _indices(
        window.user,
        window.item,
        past,
        schedule.entry_items,
        schedule.psi_items,
        schedule.event,
        schedule.blocks,
        by_item,
    )
    items, item_place, begin, last_place, place, user_ends, item_ends = made
    users = len(schedule.entry_users)

    def tensor(array: Array) -> Tensor:
        return torch.from_numpy(array.astype(np.int64, copy=False)).to(device)

    def last(ids: Array, ends: Array) -> Last:
        return Last(tensor(ids[ends]), torch.from_numpy(window.time[ends]).to(device), tensor(window.item[ends]))

    return Prepared(
        window=window,
        schedule=schedule,
        first_phi=first_phi,
        user=tensor(window.user),
        item=tensor(window.item),
        roots=(
            tensor(schedule.entry_users),
            tensor(schedule.entry_items),
            tensor(schedule.psi_users),
            tensor(schedule.psi_items),
        ),
        reads=(tensor(schedule.reads[:, 0]), tensor(schedule.reads[:, 1])),
        exits=(tensor(schedule.exits[:users]), tensor(schedule.exits[users:])),
        targets=tensor(schedule.targets),
        items=tensor(items),
        item_place=tensor(item_place),
        begin=tensor(begin),
        last_place=tensor(last_place),
        place=tensor(place),
        past=(tensor(past[:, 0]), tensor(past[:, 1])),
        last=(last(window.user, user_ends), last(window.item, item_ends)),
    )


@numba.njit(nogil=True, cache=True)
def _indices(
    user: Array,
    item: Array,
    past: Array,
    entry_items: Array,
    psi_items: Array,
    event: Array,
    blocks: Array,
    by_item: bool,
) -> tuple[Array, ...]:
    """items, item_place, begin, last_place and place as in Prepared; the last events of users, and of items."""
    n = len(user)
    items = np.sort(np.concatenate((entry_items, psi_items))).astype(np.int64)
    item_place, last_place, begin = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    begun = 0
    for k in range(n):
        before = past[k, 1]
        item_place[k] = item_place[before] if before >= 0 else np.searchsorted(items, item[k])
        before = past[k, 0]
        if before >= 0:
            last_place[k] = item_place[before]
        else:
            last_place[k], begin[begun] = len(items) + begun, user[k]
            begun += 1
    place = np.empty(len(event), np.int64)
    for block in range(len(blocks) - 1):
        for w in range(blocks[block] - blocks[0], blocks[block + 1] - blocks[0]):
            place[w] = 2 * (item_place[event[w]] if by_item else event[w]) + block % 2
    return items, item_place, begin[:begun], last_place, place, _ends(past[:, 0]), _ends(past[:, 1])


@numba.njit(nogil=True, cache=True)
def _ends(before: Array) -> Array:
    """The events that no later event of the window has as its previous."""
    final = np.ones(len(before), np.bool_)
    for k in range(len(before)):
        if before[k] >= 0:
            final[before[k]] = False
    return np.flatnonzero(final)
