"""What each user has had: a bonus for those items, learned by how lately, how often and how long ago they came.

Legend: n events of a window, L items that their users have had, all events together.

States forget, and cannot list: a recurrence that must also remember who had what has less room for the rest. So the
list is kept beside it, as a table that grows (memory/table.py), on the host. For training it is walked ahead: which
bucket an item is in depends on no parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.data.windows import Window
from dynedge.models.base import State
from dynedge.models.count_memory import hash_table as tables
from dynedge.models.count_memory.hash_table import (
    CLOCK,
    CLOCK_THEN,
    COUNT,
    HEAD,
    ITEM,
    NEXT,
    NONE,
    Table,
    add,
    find_row,
)
from dynedge.models.count_memory.undo import keep, undo
from dynedge.ops.sampled_softmax import ScoreBonus
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

NAME = "had"
LAGS, COUNTS, SINCE = 12, 4, 8  # half-octaves of the user's own events; 1 to 4 times or more; decades of seconds
BUCKETS = LAGS * COUNTS * SINCE
NEVER_FADES = np.ones(2, np.float32)


class Had(NamedTuple):
    """Event k's user has had the items from start[k] to start[k + 1] − 1."""

    start: Tensor  # int64[n + 1]
    event: Tensor  # int64[L]
    item: Tensor  # int64[L]
    bucket: Tensor  # int64[L]

    def bonus(self, values: Tensor) -> ScoreBonus:
        return ScoreBonus(self.start, self.event, self.item, values[self.bucket])


def nothing() -> State:
    return State(tables.empty(NAME))


def before(window: Window, state: State, device: torch.device) -> Had:
    """What the users of a window's events had had before each; the state moves past the window."""
    tables.make_room(state, NAME, len(window))
    return _lists(window.user, window.item, window.time, state, device)


def now(users: Tensor, times: Tensor, state: State, device: torch.device) -> Had:
    """The same for questions: nothing moves."""
    return _lists(users.cpu().numpy(), np.zeros(0, np.int32), times.double().cpu().numpy(), state, device)


def take_in(window: Window, state: State) -> None:
    tables.make_room(state, NAME, len(window))
    _take_in(tables.of(state, NAME), window.user, window.item, window.time)


def suppose(window: Window, state: State) -> Callable[[], None]:
    """Before an event is taken in that is to be undone: what undoes it."""
    tables.make_room(state, NAME, 1)
    table = tables.of(state, NAME)
    kept = keep(table, window.user.astype(np.int64), window.item.astype(np.int64))
    return lambda: undo(table, kept)


def _lists(user: Array, item: Array, time: Array, state: State, device: torch.device) -> Had:
    start, items, bucket = _walk(tables.of(state, NAME), user, item, time)
    event = np.repeat(np.arange(len(user)), np.diff(start))
    return Had(*(torch.from_numpy(part).to(device) for part in (start, event, items, bucket)))


@compiled
def _take_in(table: Table, user: Array, item: Array, time: Array) -> None:
    for k in range(len(user)):
        add(table, user[k], item[k], 1.0, 0, time[k], NEVER_FADES, NEVER_FADES, 0)


@compiled
def _walk(table: Table, user: Array, item: Array, time: Array) -> tuple[Array, Array, Array]:
    """(start, item, bucket) of Had; events are taken in, where there are items."""
    start = np.zeros(len(user) + 1, np.int64)
    items, bucket, size = np.empty(1024, np.int64), np.empty(1024, np.int64), 0
    for k in range(len(user)):
        row = find_row(table, user[k])
        entry = table.row[row, HEAD] if row != NONE else NONE
        while entry != NONE:
            if size == len(items):
                items = np.concatenate((items, np.empty_like(items)))
                bucket = np.concatenate((bucket, np.empty_like(bucket)))
            then = table.entry[entry]
            lag, times = table.row[row, CLOCK] - then[CLOCK_THEN], int(table.entry_count[entry, COUNT])
            items[size] = then[ITEM]
            bucket[size] = _bucket(lag, times, time[k] - table.entry_time[entry])
            size += 1
            entry = then[NEXT]
        start[k + 1] = size
        if len(item):
            add(table, user[k], item[k], 1.0, 0, time[k], NEVER_FADES, NEVER_FADES, 0)
    return start, items[:size].copy(), bucket[:size].copy()


@compiled
def _bucket(lag: int, times: int, since: float) -> int:
    late = min(int(1.5 * np.log2(lag + 1.0)), LAGS - 1)
    long_ago = 0 if since <= 0 else min(1 + int(np.log10(1.0 + since)), SINCE - 1)
    return (late * COUNTS + min(times, COUNTS) - 1) * SINCE + long_ago
