"""WindowIndex: a window with every index that models with evolving states need, on the device that computes.

Legend: n events of a window, W states written, M distinct items, B users whose first event is in the window.

The rows of a window's states, its arena, are numbered by its schedule (plan/schedule.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dynedge.data.windows import Window
from dynedge.ops.dispatch import uses_triton
from dynedge.ops.host_to_device import to_device
from dynedge.ops.level_gru import device_arrays, device_schedule
from dynedge.ops.read_states import LastEvents
from dynedge.plan.schedule import NO_ROW, Schedule
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

if TYPE_CHECKING:
    from dynedge.models.edge.score_lists import ListedCandidates, ScoreLists


@dataclass(frozen=True, eq=False)
class WindowIndex:
    """Indices are int64 on a CPU and, for Triton, int32 on a GPU, where they stay from epoch to epoch."""

    window: Window
    number: int  # of the training window; −1: none
    schedule: Any  # as ops.level_gru takes it: a Schedule, or on a GPU what its kernels read
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
    item_place: Tensor  # [n]: position of the event's item in `items`
    item_starts: Tensor  # [entry items + 1]: where each one's events start in item_events
    item_events: Tensor  # the events of each entry item, in order
    begin: Tensor  # [B]: the users whose last item is in the state
    last_place: Tensor  # [n]: position of the user's last item in `items`, or M + position of the user in `begin`
    place: Tensor  # [W]: 2 · position of the event's features (`item_place` if by item, else the event) + side
    own_place: tuple[Tensor, Tensor]  # [W]: 2 · event + side if the level kernels have inputs of each event, in the
    # order of the written rows and with all users' rows before all items'
    past: tuple[Tensor, Tensor]  # [n]: previous event of the same user and item in the window; below 0: none
    last: tuple[LastEvents, LastEvents]
    lists: ScoreLists | ListedCandidates | None  # for training: the items whose scores get a bonus

    def listed_tensors(self) -> tuple[Tensor, ...]:
        return () if self.lists is None else self.lists.tensors()

    @property
    def uses_triton(self) -> bool:
        """Whether its indices are those of the Triton kernels."""
        return not isinstance(self.schedule, Schedule)


def index_event(other: WindowIndex, window: Window) -> WindowIndex:
    """The index of a window of one event, made from another such index: on a CPU, without active entities."""
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
        last=(LastEvents(user, time, item), LastEvents(item, time, item)),
    )


def index_window(
    window: Window,
    schedule: Schedule,
    past: Array,
    like: Tensor,
    *,
    by_item: bool = False,
    own_inputs: bool = False,
    triton: bool = False,
    with_past: bool = True,
    number: int = -1,
    first_phi: int = 0,
    lists: ScoreLists | ListedCandidates | None = None,
) -> WindowIndex:
    """Indexes a window for computing on the device of `like`.

    `past` int32[n, 2]: the previous event of the same user and of the same item, active or not; below 0: none.
    `by_item`: an event's features are those of its item alone, so that they are computed once per item, but for
    `own_inputs`: a few numbers of each event and side, which Triton's kernels add by themselves.
    `triton`: for the Triton kernels, where they run on that device; else for plain torch. These keep users, times
    and previous events only `with_past`, for models that read them: they are a quarter of a window's bytes.
    """
    triton = triton and uses_triton(like)
    arrays = _arrays(window, schedule, past, by_item and (triton or not own_inputs))
    arrays |= dict.fromkeys(("own_place_0", "own_place_1"), arrays["place"][:0])
    if triton:
        arrays |= device_arrays(schedule)
        if by_item and own_inputs:
            own_place = _feature_places(arrays["item_place"], schedule.event, schedule.blocks, False)
            sides = [own_place[own_place % 2 == side] for side in (0, 1)]
            arrays |= {"own_place_0": own_place, "own_place_1": np.concatenate(sides)}
        if not with_past:
            arrays |= {name: arrays[name][:0] for name in ("user", "time", "past_0", "past_1")}
    tensors = to_device(arrays, like.device, packed=triton)
    placed = device_schedule(schedule, tensors) if triton else schedule

    def pair(name: str) -> tuple[Tensor, Tensor]:
        return tensors.pop(f"{name}_0"), tensors.pop(f"{name}_1")

    entities, items, times = pair("last"), pair("last_item"), pair("last_time")
    return WindowIndex(
        window=Window(window.log, window.events) if triton else window,  # without its columns
        number=number,
        schedule=placed,
        dnodes=len(schedule.dnodes),
        first_phi=first_phi,
        rows=schedule.rows,
        roots=(*pair("entry"), *pair("psi")),
        reads=pair("reads"),
        exits=pair("exits"),
        past=pair("past"),
        own_place=pair("own_place"),
        last=(LastEvents(entities[0], times[0], items[0]), LastEvents(entities[1], times[1], items[1])),
        lists=lists,
        **tensors,
    )


def _arrays(window: Window, schedule: Schedule, past: Array, by_item: bool) -> dict[str, Array]:
    """All arrays but the schedule's, on the host; pairs under two names."""
    items, *places = _merged(schedule.entry_items, schedule.psi_items)
    first_psi_item = schedule.first_psi + len(schedule.psi_users)
    item_place = _item_places(
        past[:, 1], schedule.read_rows[:, 1], *places, len(schedule.entry_users), schedule.first_psi, first_psi_item
    )
    begin, last_place = _last_places(window.user, past[:, 0], item_place, len(items))
    place = _feature_places(item_place, schedule.event, schedule.blocks, by_item)
    ends = _ends(past[:, 0]), _ends(past[:, 1])
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
def _merged(some: Array, others: Array) -> tuple[Array, Array, Array]:
    """int64: two sorted arrays without common numbers as one, and where the numbers of each are in it."""
    merged = np.empty(len(some) + len(others), np.int64)
    place, other_place = np.empty(len(some), np.int64), np.empty(len(others), np.int64)
    i = j = 0
    while i < len(some) or j < len(others):
        if j == len(others) or (i < len(some) and some[i] < others[j]):
            merged[i + j], place[i] = some[i], i + j
            i += 1
        else:
            merged[i + j], other_place[j] = others[j], i + j
            j += 1
    return merged, place, other_place


@compiled
def _item_places(
    before: Array,
    row: Array,
    entry_place: Array,
    psi_place: Array,
    first_entry_item: int,
    first_psi: int,
    first_psi_item: int,
) -> Array:
    """item_place as in WindowIndex. An item's first event in the window reads the item's root row."""
    places = np.empty(len(before), np.int64)
    for k in range(len(before)):
        if before[k] >= 0:
            places[k] = places[before[k]]
        elif row[k] < first_psi:
            places[k] = entry_place[row[k] - first_entry_item]
        else:
            places[k] = psi_place[row[k] - first_psi_item]
    return places


@compiled
def _last_places(user: Array, before: Array, item_place: Array, num_items: int) -> tuple[Array, Array]:
    """begin and last_place as in WindowIndex."""
    begin, last_place = np.empty(len(user), np.int64), np.empty(len(user), np.int64)
    begun = 0
    for k in range(len(user)):
        if before[k] >= 0:
            last_place[k] = item_place[before[k]]
        else:
            last_place[k], begin[begun] = num_items + begun, user[k]
            begun += 1
    return begin[:begun], last_place


@compiled
def _feature_places(item_place: Array, event: Array, blocks: Array, by_item: bool) -> Array:
    """place as in WindowIndex."""
    place = np.empty(len(event), np.int64)
    for block in range(len(blocks) - 1):
        for w in range(blocks[block] - blocks[0], blocks[block + 1] - blocks[0]):
            place[w] = 2 * (item_place[event[w]] if by_item else event[w]) + block % 2
    return place


@compiled
def _ends(before: Array) -> Array:
    """The events that no later event of the window has as its previous. Branch-free: half would be mispredicted."""
    final = np.ones(len(before) + 1, np.bool_)
    for k in range(len(before)):
        final[before[k] if before[k] >= 0 else len(before)] = False
    ends, count = np.empty(len(before) + 1, np.int64), 0
    for k in range(len(before)):
        ends[count] = k
        count += final[k]
    return ends[:count]
