"""A window with every index the recurrence needs, made once, ahead of training and on its device.

Legend: n events of a window, W states written, M distinct items, B users that begin (first event in the window).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dynedge.data.windows import Window
from dynedge.models.edge.repeat_bonus import RepeatLists
from dynedge.ops.dispatch import uses_triton
from dynedge.ops.host_to_device import to_device
from dynedge.plan.schedule import NO_ROW, Schedule
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

if TYPE_CHECKING:
    from dynedge.ops.level_gru.triton import Levels


@dataclass(frozen=True, eq=False)
class Last:
    """The last event of each user, or of each item, of the window."""

    entity: Tensor  # int64
    time: Tensor  # float64
    item: Tensor  # int64: the event's item


@dataclass(frozen=True, eq=False)
class Prepared:
    """Indices are int64 on a CPU and, for Triton, int32 on a GPU, where they stay from epoch to epoch."""

    window: Window
    number: int  # of the training window; −1: none
    schedule: Schedule | None  # on the host; none where `levels` stands for it
    levels: Levels | None  # the same for Triton's kernels
    dnodes: int
    first_phi: int  # where the window's d-nodes start in the table of φ
    rows: int  # of the arena
    user: Tensor  # [n]
    item: Tensor  # [n]
    time: Tensor  # float64[n]
    features: Tensor  # float32[n, ..]
    roots: tuple[Tensor, Tensor, Tensor, Tensor]  # entry users, entry items, ψ users, ψ items
    reads: tuple[Tensor, Tensor]  # [n]: the rows of the event's user and item
    after: Tensor  # [n]: the row its item is read from afterwards, or NO_ROW
    exits: tuple[Tensor, Tensor]  # the rows of the entry users' and items' last states
    targets: Tensor  # [K]: the rows that φ should equal
    items: Tensor  # [M], sorted
    item_place: Tensor  # [n]: where the event's item is among `items`
    item_starts: Tensor  # [entry items + 1]: where each one's events start in item_events
    item_events: Tensor  # the events of each entry item, in order
    begin: Tensor  # [B]: the users whose last item the state holds
    last_place: Tensor  # [n]: where the user's last item is among `items`, or M + where the user is in `begin`
    place: Tensor  # [W]: 2 · where its event's features are (`item_place` if by item, else the event) + side
    past: tuple[Tensor, Tensor]  # [n]: the previous event of the same user and item, active or not; below 0: none
    last: tuple[Last, Last]
    had: RepeatLists | None  # for training: what the events' users had had before


def alone(other: Prepared, window: Window) -> Prepared:
    """Of one event: as any other that is alone, but for who, what and when. On a CPU, where nobody is active."""
    user, item = (torch.from_numpy(column.astype(np.int64)) for column in (window.user, window.item))
    time = torch.from_numpy(window.time)
    return replace(
        other,
        window=window,
        user=user,
        item=item,
        time=time,
        features=torch.from_numpy(window.features),
        roots=(user, item, *other.roots[2:]),
        items=item,
        begin=user,
        last=(Last(user, time, item), Last(item, time, item)),
    )


def index(
    window: Window,
    schedule: Schedule,
    past: Array,
    by_item: bool,
    like: Tensor,
    *,
    number: int = -1,
    first_phi: int = 0,
    plain: bool = False,
    had: RepeatLists | None = None,
) -> Prepared:
    """`by_item`: an event's features are its item's alone, and so made once an item; `like` says where and in what.

    `past` int32[n, 2]: the previous event of the same user and of the same item, active or not; below 0: none.
    `plain`: with the schedule, for plain torch, on a GPU too.
    """
    by_levels = uses_triton(like) and not plain
    arrays = _arrays(window, schedule, past, by_item)
    if by_levels:
        from dynedge.ops.level_gru.triton import LEVEL_TENSORS, Levels, level_arrays, level_metadata

        arrays |= level_arrays(schedule)
    tensors = to_device(arrays, like.device, packed=by_levels)
    levels = None
    if by_levels:
        numbers = level_metadata(schedule)
        parts: dict[str, Any] = {name: tensors.pop(name) for name in LEVEL_TENSORS}
        levels = Levels(**parts, **numbers)

    def pair(name: str) -> tuple[Tensor, Tensor]:
        return tensors.pop(f"{name}_0"), tensors.pop(f"{name}_1")

    entities, items, times = pair("last"), pair("last_item"), pair("last_time")
    return Prepared(
        window=Window(window.log, window.events) if by_levels else window,  # without its columns
        schedule=None if by_levels else schedule,
        number=number,
        had=had,
        levels=levels,
        dnodes=len(schedule.dnodes),
        first_phi=first_phi,
        rows=schedule.rows,
        roots=(*pair("entry"), *pair("psi")),
        reads=pair("reads"),
        exits=pair("exits"),
        past=pair("past"),
        last=(Last(entities[0], times[0], items[0]), Last(entities[1], times[1], items[1])),
        **tensors,
    )


def _arrays(window: Window, schedule: Schedule, past: Array, by_item: bool) -> dict[str, Array]:
    """All but the levels, on the host; pairs as two names."""
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
    items, item_place, begin, last_place, place, *ends = made
    users = len(schedule.entry_users)
    after = np.full(len(window), NO_ROW, np.int32)
    after[schedule.item_events] = schedule.item_rows
    pairs = {
        "entry": (schedule.entry_users, schedule.entry_items),
        "psi": (schedule.psi_users, schedule.psi_items),
        "reads": (schedule.read_rows[:, 0], schedule.read_rows[:, 1]),
        "exits": (schedule.exit_rows[:users], schedule.exit_rows[users:]),
        "past": (past[:, 0], past[:, 1]),
        "last": (window.user[ends[0]], window.item[ends[1]]),
        "last_item": (window.item[ends[0]], window.item[ends[1]]),
        "last_time": (window.time[ends[0]], window.time[ends[1]]),
    }
    return {f"{name}_{side}": pair[side] for name, pair in pairs.items() for side in (0, 1)} | {
        "user": window.user,
        "item": window.item,
        "time": window.time,
        "features": window.features,
        "after": after,
        "targets": schedule.dnode_rows,
        "items": items,
        "item_place": item_place,
        "item_starts": schedule.item_starts,
        "item_events": schedule.item_events,
        "begin": begin,
        "last_place": last_place,
        "place": place,
    }


@compiled
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


@compiled
def _ends(before: Array) -> Array:
    """The events that no later event of the window has as its previous."""
    final = np.ones(len(before), np.bool_)
    for k in range(len(before)):
        if before[k] >= 0:
            final[before[k]] = False
    return np.flatnonzero(final)
