"""Repeat-consumption bonus: learned score offsets for items the user already interacted with.

The offset of an item depends on its bucket: how many of the user's events ago, how often, and how long ago it
occurred. A recurrent state forgets and cannot list items, and a recurrence that had to remember them would have less
capacity for the rest. So the lists are a separate growable hash table on the host (edge.hash_table.py).
Buckets depend on no parameter, so for training the lists are made ahead of the step.

Legend: n events of a window, L listed items of all their users together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynedge.data.windows import Window
from dynedge.models.base import State
from dynedge.models.edge import hash_table
from dynedge.models.edge.hash_table import (
    CLOCK,
    COUNT,
    ENTRY_CLOCK,
    HEAD,
    ITEM,
    LENGTH,
    NEXT,
    NONE,
    CountTable,
    add_count,
    find_row,
)
from dynedge.models.edge.undo import restore_rows, save_rows
from dynedge.ops.embedding_bag.cpu import add_row
from dynedge.ops.gather_matmul import ALLOW_FMA
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

TABLE = "user_items"  # prefix of the table's tensors in the state
EVENT_AGES, COUNTS, TIME_AGES = (
    12,
    4,
    8,
)  # steps of 2/3 octave in the user's events; 1 to 4 or more; decades of seconds
BUCKETS = EVENT_AGES * COUNTS * TIME_AGES
EVENT_AGE = np.minimum(1.5 * np.log2(np.arange(1, 163)), EVENT_AGES - 1).astype(
    np.int32
)  # by events ago; then the same
DECADES = 10.0 ** np.arange(1, TIME_AGES - 1)  # where the time ages from 2 on start


class RepeatLists(NamedTuple):
    """The items that the user of each event has interacted with; event k has start[k] to start[k + 1] - 1."""

    start: Tensor  # int64[n + 1]
    item: Tensor  # int32[L]
    bucket: Tensor  # int32[L]


def empty_lists() -> State:
    """Returns the state before the first event."""
    return State(hash_table.empty(TABLE))


def check(state: State, users: int, items: int) -> None:
    """Raises DataError unless the lists in a state from a file are in range."""
    hash_table.check(state, TABLE, users, items)


def lists_before_events(window: Window, state: State) -> RepeatLists:
    """Returns the lists as they are before each event of the window, and counts its events in the state."""
    hash_table.reserve(state, TABLE, len(window))
    return _lists(window.user, window.item, window.time, state)


def lists_now(users: Tensor, times: Tensor, state: State) -> RepeatLists:
    """Returns the current lists of these users; the state stays as it is."""
    return _lists(users.int().cpu().numpy(), np.zeros(0, np.int32), times.double().cpu().numpy(), state)


def count_events(window: Window, state: State) -> None:
    """Counts the events of a window in the state."""
    hash_table.reserve(state, TABLE, len(window))
    _count_events(hash_table.view_of(state, TABLE), window.user, window.item, window.time)


def save_for_undo(window: Window, state: State) -> Callable[[], None]:
    """Saves what counting a window of one event will change, and returns the function that restores it."""
    hash_table.reserve(state, TABLE, 1)
    table = hash_table.view_of(state, TABLE)
    saved = save_rows(table, window.user.astype(np.int64), window.item.astype(np.int64))
    return lambda: restore_rows(table, saved)


def _lists(user: Array, item: Array, time: Array, state: State) -> RepeatLists:
    lists = _list_and_count(hash_table.view_of(state, TABLE), user, item, time)
    return RepeatLists(*map(torch.from_numpy, lists))


@compiled
def _count_events(table: CountTable, user: Array, item: Array, time: Array) -> None:
    for k in range(len(user)):
        add_count(table, user[k], item[k], time[k])


@compiled
def _list_and_count(table: CountTable, user: Array, item: Array, time: Array) -> tuple[Array, Array, Array]:
    """Returns (start, item, bucket) of RepeatLists; counts the events too, unless `item` is empty."""
    start = np.zeros(len(user) + 1, np.int64)
    items, bucket, size = np.empty(1024, np.int32), np.empty(1024, np.int32), 0
    for k in range(len(user)):
        row = find_row(table, user[k])
        length = table.rows[row, LENGTH] if row != NONE else 0
        while size + length > len(items):
            items = np.concatenate((items, np.empty_like(items)))
            bucket = np.concatenate((bucket, np.empty_like(bucket)))
        if length:
            _list_row(table, row, time[k], items[size:], bucket[size:])
        size += length
        start[k + 1] = size
        if len(item):
            add_count(table, user[k], item[k], time[k])
    return start, items[:size], bucket[:size]


@compiled
def _list_row(table: CountTable, row: int, time: float, items: Array, bucket: Array) -> None:
    """Writes the items of a row and their buckets."""
    entries, times, clock = table.entries, table.entry_times, table.rows[row, CLOCK]
    entry, size = table.rows[row, HEAD], 0
    while entry != NONE:
        items[size] = entries[entry, ITEM]
        bucket[size] = _bucket(clock - entries[entry, ENTRY_CLOCK], entries[entry, COUNT], time - times[entry])
        entry, size = entries[entry, NEXT], size + 1


@compiled
def add_bonus(table: CountTable, user: int, time: float, values: Array, gate: np.float32, scores: Array) -> None:
    """scores[I] += the value of each listed item's bucket, times 1 + gate, for one user now."""
    row = find_row(table, user)
    entry = table.rows[row, HEAD] if row != NONE else NONE
    while entry != NONE:
        of_item = table.entries[entry]
        age, seconds = table.rows[row, CLOCK] - of_item[ENTRY_CLOCK], time - table.entry_times[entry]
        scores[of_item[ITEM]] += values[_bucket(age, of_item[COUNT], seconds)] * (np.float32(1) + gate)
        entry = of_item[NEXT]


@compiled(fastmath=ALLOW_FMA)
def add_profile(table: CountTable, user: int, time: float, weights: Array, vectors: Array, out: Array) -> None:
    """out[d] += the profile of one user now (user_profile.py), of the listed items' vectors [I, d]."""
    row = find_row(table, user)
    entry = table.rows[row, HEAD] if row != NONE else NONE
    while entry != NONE:
        of_item = table.entries[entry]
        age, seconds = table.rows[row, CLOCK] - of_item[ENTRY_CLOCK], time - table.entry_times[entry]
        add_row(out, weights[_bucket(age, of_item[COUNT], seconds)], vectors[of_item[ITEM]])
        entry = of_item[NEXT]


@compiled
def _bucket(age: int, count: int, seconds: float) -> int:
    event_age, time_age = EVENT_AGE[min(age, len(EVENT_AGE) - 1)], int(seconds > 0)
    for decade in DECADES:
        time_age += 1.0 + seconds >= decade
    return (event_age * COUNTS + min(count, COUNTS) - 1) * TIME_AGES + time_age
