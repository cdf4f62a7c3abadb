"""A window with every index the recurrence needs, made once, ahead of training and on its device.

Legend: n events of a window, W states written, M distinct items, B users that begin (first event in the window).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    past: tuple[Tensor, Tensor]  # int64[n]: the previous event of the same user and item, active or not; -1: none
    last: tuple[Last, Last]


def index(
    window: Window, schedule: Schedule, past: Array, first_phi: int, by_item: bool, device: torch.device
) -> Prepared:
    """`by_item`: an event's features are its item's alone, and so made once an item.

    `past` int32[n, 2]: the previous event of the same user and of the same item, active or not; below 0: none.
    """

    def tensor(array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(device)

    groups = schedule.entry_users, schedule.entry_items, schedule.psi_users, schedule.psi_items
    items = np.sort(np.concatenate((schedule.entry_items, schedule.psi_items)))
    place = np.searchsorted(items, window.item)
    before = past[:, 0]
    begins = before < 0
    last_place = np.where(begins, len(items) + np.cumsum(begins) - 1, place[before])
    users = len(schedule.entry_users)
    sizes = np.diff(schedule.blocks)
    side = np.repeat(np.arange(len(sizes)) & 1, sizes)
    time, own_item = torch.from_numpy(window.time), window.item

    def last(ids: Array, before: Array) -> Last:
        final = np.ones(len(before), bool)  # no later event of the window has this one as its previous
        final[before[before >= 0]] = False
        return Last(tensor(ids[final]), time[torch.from_numpy(final)].to(device), tensor(own_item[final]))

    return Prepared(
        window=window,
        schedule=schedule,
        first_phi=first_phi,
        user=tensor(window.user),
        item=tensor(window.item),
        roots=tuple(tensor(ids) for ids in groups),  # type: ignore[arg-type]
        reads=(tensor(schedule.reads[:, 0]), tensor(schedule.reads[:, 1])),
        exits=(tensor(schedule.exits[:users]), tensor(schedule.exits[users:])),
        targets=tensor(schedule.targets),
        items=tensor(items),
        item_place=tensor(place),
        begin=tensor(window.user[begins]),
        last_place=tensor(last_place),
        place=tensor(2 * (place if by_item else np.arange(len(place)))[schedule.event] + side),
        past=(tensor(np.maximum(past[:, 0], -1)), tensor(np.maximum(past[:, 1], -1))),
        last=(last(window.user, past[:, 0]), last(window.item, past[:, 1])),
    )
