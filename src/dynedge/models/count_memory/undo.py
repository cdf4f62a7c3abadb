"""What one event changes in a table of counts, put aside, so that an event that did not happen leaves no trace.

An event counts an item in a few contexts. That changes the context's row, the entries listed in it, and what is
appended: all of it is small, and kept here before; undoing puts it back, to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.count_memory.hash_table import (
    HEAD,
    ITEM,
    NEXT,
    NONE,
    ROW,
    SIZE,
    Table,
    find_entry,
    find_row,
    slot_of,
)
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled


class Kept(NamedTuple):
    used: Array  # int64[2]
    rows: Array  # int64[r]: which, and what they were
    row: Array  # int32[r, 8]
    entries: Array  # int64[e]
    entry: Array  # int32[e, 8]
    entry_time: Array  # float64[e]


@compiled
def keep(table: Table, keys: Array, items: Array) -> Kept:
    """Before items[k] is counted in context keys[k], both int64."""
    rows, entries = np.empty(len(keys), np.int64), np.empty(0, np.int64)
    found = 0
    for k in range(len(keys)):
        row = find_row(table, keys[k])
        if row == NONE:
            continue
        rows[found] = row
        found += 1
        listed, size = np.empty(table.row[row, SIZE] + 1, np.int64), 0
        entry = table.row[row, HEAD]
        while entry != NONE:
            listed[size] = entry
            size += 1
            entry = table.entry[entry, NEXT]
        entry = find_entry(table, row, items[k])  # it may be in no list now
        if entry != NONE:
            listed[size] = entry
            size += 1
        entries = np.concatenate((entries, listed[:size]))
    rows = rows[:found]
    return Kept(table.used.copy(), rows, table.row[rows], entries, table.entry[entries], table.entry_time[entries])


@compiled
def undo(table: Table, kept: Kept) -> None:
    for entry in range(table.used[1] - 1, kept.used[1] - 1, -1):  # the last to come is the first to go
        key = (np.int64(table.entry[entry, ROW]) << 32) | table.entry[entry, ITEM]
        table.entry_slots[slot_of(table.entry_slots, key, entry)] = NONE
        table.entry[entry] = 0
        table.entry_time[entry] = 0
    for row in range(table.used[0] - 1, kept.used[0] - 1, -1):
        table.row_slots[slot_of(table.row_slots, table.row_key[row], row)] = NONE
        table.row[row] = 0
        table.row_key[row] = 0
    table.used[:] = kept.used
    table.row[kept.rows] = kept.row
    table.entry[kept.entries] = kept.entry
    table.entry_time[kept.entries] = kept.entry_time
