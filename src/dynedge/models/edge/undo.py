"""Undoing an event: the rows and entries of a count table that it changes are saved first and restored after.

Counting an item of a user changes the user's row and one entry listed in it, or appends one or both.
All of that is small, and restoring it gives the table back to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.edge.hash_table import ITEM, NONE, ROW, CountTable, find_entry, find_row, find_slot
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled


class SavedRows(NamedTuple):
    """Copies of r rows and e entries of a table."""

    used: Array  # int64[2]
    row_numbers: Array  # int64[r]
    rows: Array  # int32[r, 3]
    entry_numbers: Array  # int64[e]
    entries: Array  # int32[e, 5]
    entry_times: Array  # float64[e]


@compiled
def save_rows(table: CountTable, keys: Array, items: Array) -> SavedRows:
    """Copies what counting items[k] of user keys[k], both int64, will change."""
    rows, entries = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    num_rows, num_entries = 0, 0
    for k in range(len(keys)):
        row = find_row(table, keys[k])
        if row == NONE:
            continue
        rows[num_rows] = row
        num_rows += 1
        entry = find_entry(table, row, items[k])
        if entry != NONE:
            entries[num_entries] = entry
            num_entries += 1
    rows, entries = rows[:num_rows], entries[:num_entries]
    return SavedRows(
        table.used.copy(), rows, table.rows[rows], entries, table.entries[entries], table.entry_times[entries]
    )


@compiled
def restore_rows(table: CountTable, saved: SavedRows) -> None:
    """Removes what was appended since `save_rows` and restores what was copied."""
    for entry in range(table.used[1] - 1, saved.used[1] - 1, -1):  # newest first, as open addressing requires
        key = (np.int64(table.entries[entry, ROW]) << 32) | table.entries[entry, ITEM]
        table.entry_slots[find_slot(table.entry_slots, key, entry)] = NONE
        table.entries[entry] = 0
        table.entry_times[entry] = 0
    for row in range(table.used[0] - 1, saved.used[0] - 1, -1):
        table.row_slots[find_slot(table.row_slots, table.row_keys[row], row)] = NONE
        table.rows[row] = 0
        table.row_keys[row] = 0
    table.used[:] = saved.used
    table.rows[saved.row_numbers] = saved.rows
    table.entries[saved.entry_numbers] = saved.entries
    table.entry_times[saved.entry_numbers] = saved.entry_times
