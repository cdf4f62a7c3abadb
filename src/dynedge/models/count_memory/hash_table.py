"""Counts of what followed what: for any context, the items seen in it, how often and how lately.

A context is a number (a user, an item, a pair of them). Its row lists the items that came in it as entries, each with
a count that never fades, one that fades with every event of the context, and one that fades with every event of the
log. Fading is lazy: an entry is brought up to date when it is touched or read, so that an event costs O(1).

Both look-ups are open hashing into arrays that grow by doubling, so that a table is plain arrays: it can be cloned,
saved and loaded like any other part of a model's state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from dynedge.models.base import State
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

NONE = -1
ASIDE = -2  # in the place of an entry's next one: it is in no list now
ROOM = 1024  # rows and entries a new table has room for


class Table(NamedTuple):
    """R rows and N entries, hash arrays of twice their room. A record's numbers stand together, half a cache line:

    `row` int32[R, 8]: the first entry of its list and how long that is, events of the context so far, the log's
    clock at its last event; then, as float32 in `row_count`, the sums of its entries' counts: plain, fading by
    context, fading by log. `entry` int32[N, 8]: row, item, next entry of the row's list or ASIDE, the row's clock and
    the log's when the item last came; then its counts in `entry_count`.
    """

    used: Array  # int64[2]: rows and entries in use
    row_slots: Array  # int32: row of a context, by its hash
    row_key: Array  # int64[R]: the context
    row: Array
    row_count: Array  # the same memory as float32
    entry_slots: Array  # int32: entry of a row and item, by their hash
    entry: Array
    entry_count: Array
    entry_time: Array  # float64[N]: when the item last came


STORED = tuple(name for name in Table._fields if not name.endswith("_count"))
HEAD, SIZE, CLOCK, EVENT = 0, 1, 2, 3  # of a row
ROW, ITEM, NEXT, CLOCK_THEN, EVENT_THEN = 0, 1, 2, 3, 4  # of an entry
COUNT = 5  # where the three counts begin, in both


def empty(prefix: str) -> State:
    """An empty table's tensors, each named prefix.field."""
    state = State()
    state[f"{prefix}.used"] = torch.zeros(2, dtype=torch.int64)
    for kind in ("row", "entry"):
        state[f"{prefix}.{kind}_slots"] = torch.full((2 * ROOM,), NONE, dtype=torch.int32)
        state[f"{prefix}.{kind}"] = torch.zeros(ROOM, 8, dtype=torch.int32)
    state[f"{prefix}.row_key"] = torch.zeros(ROOM, dtype=torch.int64)
    state[f"{prefix}.entry_time"] = torch.zeros(ROOM, dtype=torch.float64)
    return state


def of(state: State, prefix: str) -> Table:
    """The table whose tensors are in the state; it shares their memory."""
    stored = {name: state[f"{prefix}.{name}"].numpy() for name in STORED}
    return Table(row_count=stored["row"].view(np.float32), entry_count=stored["entry"].view(np.float32), **stored)


def make_room(state: State, prefix: str, events: int) -> None:
    """Grow the state's table, where needed, so that `events` more counts fit."""
    used = state[f"{prefix}.used"].tolist()
    for number, (kind, beside) in enumerate((("row", "row_key"), ("entry", "entry_time"))):
        before = state[f"{prefix}.{kind}"].shape[0]
        room = double(before, used[number] + events)
        if room == before:
            continue
        for name in (kind, beside):
            old = state[f"{prefix}.{name}"]
            grown = old.new_zeros((room, *old.shape[1:]))
            grown[:before] = old
            state[f"{prefix}.{name}"] = grown
        state[f"{prefix}.{kind}_slots"] = torch.full((2 * room,), NONE, dtype=torch.int32)
        (_rehash_rows if kind == "row" else _rehash_entries)(of(state, prefix))


def double(room: int, needed: int) -> int:
    while room < needed:
        room *= 2
    return room


@compiled(inline="always")
def _mix(key: int) -> np.uint64:
    x = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    return x ^ (x >> np.uint64(32))


@compiled
def find_row(table: Table, key: int) -> int:
    """The row of a context, or -1."""
    mask = len(table.row_slots) - 1
    slot = np.int64(_mix(key) & np.uint64(mask))
    while True:
        row = table.row_slots[slot]
        if row == NONE or table.row_key[row] == key:
            return row
        slot = (slot + 1) & mask


@compiled
def find_entry(table: Table, row: int, item: int) -> int:
    """The entry of an item in a row, or -1."""
    mask = len(table.entry_slots) - 1
    slot = np.int64(_mix((np.int64(row) << 32) | item) & np.uint64(mask))
    while True:
        entry = table.entry_slots[slot]
        if entry == NONE or (table.entry[entry, ROW] == row and table.entry[entry, ITEM] == item):
            return entry
        slot = (slot + 1) & mask


@compiled
def _place(slots: Array, key: int, value: int) -> None:
    mask = len(slots) - 1
    slot = np.int64(_mix(key) & np.uint64(mask))
    while slots[slot] != NONE:
        slot = (slot + 1) & mask
    slots[slot] = value


@compiled
def slot_of(slots: Array, key: int, value: int) -> np.int64:
    """Where `_place` has put a value that is there."""
    mask = len(slots) - 1
    slot = np.int64(_mix(key) & np.uint64(mask))
    while slots[slot] != value:
        slot = (slot + 1) & mask
    return slot


@compiled
def _rehash_rows(table: Table) -> None:
    for row in range(table.used[0]):
        _place(table.row_slots, table.row_key[row], row)


@compiled
def _rehash_entries(table: Table) -> None:
    for entry in range(table.used[1]):
        key = (np.int64(table.entry[entry, ROW]) << 32) | table.entry[entry, ITEM]
        _place(table.entry_slots, key, entry)


@compiled
def add(
    table: Table,
    key: int,
    item: int,
    weight: float,
    event: int,
    time: float,
    by_context: Array,
    by_log: Array,
    longest: int,
) -> None:
    """Count an item in a context. `by_context` and `by_log`: what a count has faded to after so many events.

    A list that grows to `longest` (0: any length) is cut to the half that matters most; what is set aside keeps its
    counts and is back in the list when the item comes again.
    """
    row = find_row(table, key)
    if row == NONE:
        row = table.used[0]
        table.used[0] += 1
        table.row_key[row], table.row[row, HEAD], table.row[row, EVENT] = key, NONE, event
        _place(table.row_slots, key, row)
    own, total = table.row[row], table.row_count[row]
    own[CLOCK] += 1
    total[COUNT] += weight
    total[COUNT + 1] = total[COUNT + 1] * by_context[1] + weight
    total[COUNT + 2] = total[COUNT + 2] * faded(by_log, event - own[EVENT]) + weight
    own[EVENT] = event
    entry = find_entry(table, row, item)
    if entry == NONE:
        entry = table.used[1]
        table.used[1] += 1
        new = table.entry[entry]
        new[ROW], new[ITEM], new[NEXT], new[CLOCK_THEN], new[EVENT_THEN] = row, item, ASIDE, own[CLOCK], event
        _place(table.entry_slots, (np.int64(row) << 32) | item, entry)
    then, count = table.entry[entry], table.entry_count[entry]
    count[COUNT] += weight
    count[COUNT + 1] = count[COUNT + 1] * faded(by_context, own[CLOCK] - then[CLOCK_THEN]) + weight
    count[COUNT + 2] = count[COUNT + 2] * faded(by_log, event - then[EVENT_THEN]) + weight
    then[CLOCK_THEN], then[EVENT_THEN] = own[CLOCK], event
    table.entry_time[entry] = time
    if then[NEXT] == ASIDE:
        then[NEXT] = own[HEAD]
        own[HEAD] = entry
        own[SIZE] += 1
        if own[SIZE] == longest:
            _cut(table, row, event, by_log)


@compiled
def _cut(table: Table, row: int, event: int, by_log: Array) -> None:
    """Keep the half of a row's list with the largest shares of its counts, plain and fading, and the newest entry."""
    own, total = table.row[row], table.row_count[row]
    size = own[SIZE]
    listed, matters = np.empty(size, np.int32), np.empty(size, np.float32)
    entry = own[HEAD]
    for k in range(size):
        then, count = table.entry[entry], table.entry_count[entry]
        fresh = count[COUNT + 2] * faded(by_log, event - then[EVENT_THEN])
        listed[k], matters[k] = entry, count[COUNT] / total[COUNT] + fresh / total[COUNT + 2]
        entry = then[NEXT]
    matters[0] = np.inf
    order = np.argsort(-matters, kind="mergesort")
    own[HEAD], own[SIZE] = NONE, 0
    for k in range(size):
        entry = listed[order[k]]
        if k < size // 2:
            table.entry[entry, NEXT] = own[HEAD]
            own[HEAD] = entry
            own[SIZE] += 1
        else:
            table.entry[entry, NEXT] = ASIDE


@compiled(inline="always")
def faded(by: Array, gap: int) -> float:
    """What a count has faded to after `gap` events; in the end, nothing."""
    return by[min(gap, len(by) - 1)]


def fading(half_life: float) -> Array:
    """float32: 2^(-gap / half-life), and 0 once it is below a millionth."""
    gaps = np.arange(int(20 * half_life) + 2)
    return np.append(2.0 ** (-gaps[:-1] / half_life), 0.0).astype(np.float32)
