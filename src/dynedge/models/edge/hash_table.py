"""Hash table of counts: for each user, the items that occurred, how often and how recently.

A user's row holds a linked list of entries, one per item. Rows and entries are both found by open addressing in
arrays that grow by doubling. A table is therefore plain arrays, which are cloned, saved and loaded like the rest of a
model's state.

Legend: R rows and N entries, as capacities.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from dynedge.errors import DataError
from dynedge.models.base import State
from dynedge.models.growable import doubled_capacity
from dynedge.models.state_checks import check_range, check_tensor
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

NONE = -1
MAX_CLOCK = 1 << 30  # of a table from a file: counts go on from there
INITIAL_CAPACITY = 1024  # rows and entries of a new table

HEAD, LENGTH, CLOCK = range(3)  # columns of a row; CLOCK: number of events so far
ROW, ITEM, NEXT, ENTRY_CLOCK, COUNT = range(5)  # columns of an entry; ENTRY_CLOCK: of its row at the last occurrence


class CountTable(NamedTuple):
    """The arrays of a table. Columns are named above."""

    used: Array  # int64[2]: numbers of rows and entries in use
    row_slots: Array  # int32[2R]: row of a user, by the hash of its key
    row_keys: Array  # int64[R]: the user
    rows: Array  # int32[R, 3]
    entry_slots: Array  # int32[2N]: entry of a row and an item, by their hash
    entries: Array  # int32[N, 5]
    entry_times: Array  # float64[N]: time of the item's last event


def empty(prefix: str) -> State:
    """Returns the tensors of an empty table, each named prefix.field."""
    state = State()
    state[f"{prefix}.used"] = torch.zeros(2, dtype=torch.int64)
    for slots, records, columns in (("row_slots", "rows", 3), ("entry_slots", "entries", 5)):
        state[f"{prefix}.{slots}"] = torch.full((2 * INITIAL_CAPACITY,), NONE, dtype=torch.int32)
        state[f"{prefix}.{records}"] = torch.zeros(INITIAL_CAPACITY, columns, dtype=torch.int32)
    state[f"{prefix}.row_keys"] = torch.zeros(INITIAL_CAPACITY, dtype=torch.int64)
    state[f"{prefix}.entry_times"] = torch.zeros(INITIAL_CAPACITY, dtype=torch.float64)
    return state


def check(state: State, prefix: str, users: int, items: int) -> None:
    """Raises DataError unless everything of a table in a state from a file is in range and consistent."""
    used = check_tensor(state, f"{prefix}.used", torch.int64, (2,), 0)
    for slots, records, columns, beside in (
        ("row_slots", "rows", 3, "row_keys"),
        ("entry_slots", "entries", 5, "entry_times"),
    ):
        capacity = len(check_tensor(state, f"{prefix}.{records}", torch.int32, (_is_power_of_two, columns), NONE))
        check_tensor(state, f"{prefix}.{slots}", torch.int32, (2 * capacity,), NONE, capacity - 1)
        check_tensor(state, f"{prefix}.{beside}", torch.int64 if beside == "row_keys" else torch.float64, (capacity,))
    check_range(f"{prefix}.row_keys", state[f"{prefix}.row_keys"], 0, users - 1 if used[0] else 0)
    table = view_of(state, prefix)
    fits = used[0] <= len(table.rows) and used[1] <= len(table.entries)
    if not fits or not _is_consistent(table, items):
        raise DataError(f"its table '{prefix}' is inconsistent")


def _is_power_of_two(size: int) -> bool:
    return size >= INITIAL_CAPACITY and size & (size - 1) == 0


@compiled
def _is_consistent(table: CountTable, items: int) -> bool:
    """Whether entries are in range, lists of entries end, and the slots are those of these rows and entries."""
    rows, entries = table.used[0], table.used[1]
    for row in range(rows):
        head = table.rows[row, HEAD]
        if head >= entries or table.rows[row, CLOCK] > MAX_CLOCK:
            return False
        if head != NONE and table.entries[head, ROW] != row:
            return False
    for entry in range(entries):
        of_item = table.entries[entry]
        row, following = of_item[ROW], of_item[NEXT]
        if not 0 <= row < rows or not 0 <= of_item[ITEM] < items or not 1 <= of_item[COUNT] <= MAX_CLOCK:
            return False
        if not NONE <= following < entry:  # lists lead to older entries, so they end
            return False
        if not 0 <= of_item[ENTRY_CLOCK] <= table.rows[row, CLOCK]:
            return False
        if following != NONE and table.entries[following, ROW] != row:
            return False
    for row in range(rows):
        length, entry = 0, table.rows[row, HEAD]
        while entry != NONE:
            length, entry = length + 1, table.entries[entry, NEXT]
        if length != table.rows[row, LENGTH]:
            return False
    row_slots, entry_slots = np.full_like(table.row_slots, NONE), np.full_like(table.entry_slots, NONE)
    for row in range(rows):
        _insert(row_slots, table.row_keys[row], row)
    for entry in range(entries):
        _insert(entry_slots, (np.int64(table.entries[entry, ROW]) << 32) | table.entries[entry, ITEM], entry)
    return bool(np.all(row_slots == table.row_slots) and np.all(entry_slots == table.entry_slots))


def view_of(state: State, prefix: str) -> CountTable:
    """Returns the table whose tensors are in the state; both share their memory."""
    return CountTable(**{name: state[f"{prefix}.{name}"].numpy() for name in CountTable._fields})


def reserve(state: State, prefix: str, additional: int) -> None:
    """Grows the table in the state, where needed, so that `additional` more counts fit."""
    used_rows, used_entries = state[f"{prefix}.used"].tolist()
    for names, slots, used, rehash in (
        (("rows", "row_keys"), "row_slots", used_rows, _rehash_rows),
        (("entries", "entry_times"), "entry_slots", used_entries, _rehash_entries),
    ):
        before = state[f"{prefix}.{names[0]}"].shape[0]
        capacity = doubled_capacity(before, used + additional)
        if capacity == before:
            continue
        for name in names:
            old = state[f"{prefix}.{name}"]
            grown = old.new_zeros((capacity, *old.shape[1:]))
            grown[:before] = old
            state[f"{prefix}.{name}"] = grown
        state[f"{prefix}.{slots}"] = torch.full((2 * capacity,), NONE, dtype=torch.int32)
        rehash(view_of(state, prefix))


@compiled(inline="always")
def _hash(key: int) -> np.uint64:
    x = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    return x ^ (x >> np.uint64(32))


@compiled
def find_row(table: CountTable, key: int) -> int:
    """Returns the row of a user, or -1."""
    mask = len(table.row_slots) - 1
    slot = np.int64(_hash(key) & np.uint64(mask))
    while True:
        row = table.row_slots[slot]
        if row == NONE or table.row_keys[row] == key:
            return row
        slot = (slot + 1) & mask


@compiled
def find_entry(table: CountTable, row: int, item: int) -> int:
    """Returns the entry of an item in a row, or -1."""
    mask = len(table.entry_slots) - 1
    slot = np.int64(_hash((np.int64(row) << 32) | item) & np.uint64(mask))
    while True:
        entry = table.entry_slots[slot]
        if entry == NONE or (table.entries[entry, ROW] == row and table.entries[entry, ITEM] == item):
            return entry
        slot = (slot + 1) & mask


@compiled
def _insert(slots: Array, key: int, value: int) -> None:
    mask = len(slots) - 1
    slot = np.int64(_hash(key) & np.uint64(mask))
    while slots[slot] != NONE:
        slot = (slot + 1) & mask
    slots[slot] = value


@compiled
def find_slot(slots: Array, key: int, value: int) -> np.int64:
    """Returns the slot that holds `value`, which must have been inserted under `key`."""
    mask = len(slots) - 1
    slot = np.int64(_hash(key) & np.uint64(mask))
    while slots[slot] != value:
        slot = (slot + 1) & mask
    return slot


@compiled
def _rehash_rows(table: CountTable) -> None:
    for row in range(table.used[0]):
        _insert(table.row_slots, table.row_keys[row], row)


@compiled
def _rehash_entries(table: CountTable) -> None:
    for entry in range(table.used[1]):
        key = (np.int64(table.entries[entry, ROW]) << 32) | table.entries[entry, ITEM]
        _insert(table.entry_slots, key, entry)


@compiled
def add_count(table: CountTable, key: int, item: int, time: float) -> None:
    """Counts an item of a user."""
    row = find_row(table, key)
    if row == NONE:
        row = table.used[0]
        table.used[0] += 1
        table.row_keys[row], table.rows[row, HEAD] = key, NONE
        _insert(table.row_slots, key, row)
    record = table.rows[row]
    record[CLOCK] += 1
    entry = find_entry(table, row, item)
    if entry == NONE:
        entry = table.used[1]
        table.used[1] += 1
        new = table.entries[entry]
        new[ROW], new[ITEM], new[NEXT] = row, item, record[HEAD]
        record[HEAD] = entry
        record[LENGTH] += 1
        _insert(table.entry_slots, (np.int64(row) << 32) | item, entry)
    table.entries[entry, COUNT] += 1
    table.entries[entry, ENTRY_CLOCK] = record[CLOCK]
    table.entry_times[entry] = time
