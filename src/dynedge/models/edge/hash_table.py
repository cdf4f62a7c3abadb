"""Hash tables of decayed counts: for each context, the items that occurred in it, how often and how recently.

A context is an integer key (a user, an item, a pair of them). Its row holds a linked list of entries, one per item,
each with three counts: plain, decayed with every event of the context, and decayed with every event of the log. Decay
is lazy: a count is brought up to date when it is written or read, so that counting an event costs O(1).

Rows and entries are both found by open addressing in arrays that grow by doubling. A table is therefore plain arrays,
which are cloned, saved and loaded like the rest of a model's state.

Legend: R rows and N entries, as capacities.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from dynedge.models.base import State
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

NONE = -1
UNLISTED = -2  # in the column NEXT: the entry was pruned from its row's list
INITIAL_CAPACITY = 1024  # rows and entries of a new table

# Columns of a row. A clock is a number of events so far: of the context, or of the log at the context's last event.
HEAD, LENGTH, CONTEXT_CLOCK, LOG_CLOCK = 0, 1, 2, 3
# Columns of an entry. Its clocks are those of its row and of the log when the item last occurred.
ROW, ITEM, NEXT, ENTRY_CONTEXT_CLOCK, ENTRY_LOG_CLOCK = 0, 1, 2, 3, 4
# Columns of both, as float32: of a row they are the sums over its entries.
COUNT, CONTEXT_DECAYED_COUNT, LOG_DECAYED_COUNT = 5, 6, 7


class CountTable(NamedTuple):
    """The arrays of a table. Columns are named above; a record of eight numbers is half a cache line."""

    used: Array  # int64[2]: numbers of rows and entries in use
    row_slots: Array  # int32[2R]: row of a context, by the hash of its key
    row_keys: Array  # int64[R]: key of the context
    rows: Array  # int32[R, 8]
    row_counts: Array  # float32[R, 8]: the same memory
    entry_slots: Array  # int32[2N]: entry of a row and an item, by their hash
    entries: Array  # int32[N, 8]
    entry_counts: Array  # float32[N, 8]: the same memory
    entry_times: Array  # float64[N]: time of the item's last event


STORED = tuple(name for name in CountTable._fields if not name.endswith("_counts"))


def empty(prefix: str) -> State:
    """Returns the tensors of an empty table, each named prefix.field."""
    state = State()
    state[f"{prefix}.used"] = torch.zeros(2, dtype=torch.int64)
    for slots, records in (("row_slots", "rows"), ("entry_slots", "entries")):
        state[f"{prefix}.{slots}"] = torch.full((2 * INITIAL_CAPACITY,), NONE, dtype=torch.int32)
        state[f"{prefix}.{records}"] = torch.zeros(INITIAL_CAPACITY, 8, dtype=torch.int32)
    state[f"{prefix}.row_keys"] = torch.zeros(INITIAL_CAPACITY, dtype=torch.int64)
    state[f"{prefix}.entry_times"] = torch.zeros(INITIAL_CAPACITY, dtype=torch.float64)
    return state


def view_of(state: State, prefix: str) -> CountTable:
    """Returns the table whose tensors are in the state; both share their memory."""
    stored = {name: state[f"{prefix}.{name}"].numpy() for name in STORED}
    row_counts, entry_counts = stored["rows"].view(np.float32), stored["entries"].view(np.float32)
    return CountTable(row_counts=row_counts, entry_counts=entry_counts, **stored)


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


def doubled_capacity(capacity: int, needed: int) -> int:
    """Returns the capacity, doubled until it is at least `needed`."""
    while capacity < needed:
        capacity *= 2
    return capacity


@compiled(inline="always")
def _hash(key: int) -> np.uint64:
    x = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    return x ^ (x >> np.uint64(32))


@compiled
def find_row(table: CountTable, key: int) -> int:
    """Returns the row of a context, or -1."""
    mask = len(table.row_slots) - 1
    slot = np.int64(_hash(key) & np.uint64(mask))
    while True:
        row = table.row_slots[slot]
        if row == NONE or table.row_keys[row] == key:
            return row
        slot = (slot + 1) & mask


@compiled
def find_entry(table: CountTable, row: int, item: int) -> int:
    """Returns the entry of an item in a row, listed or not, or -1."""
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
def add_count(
    table: CountTable,
    key: int,
    item: int,
    weight: float,
    log_clock: int,
    time: float,
    context_decay: Array,
    log_decay: Array,
    max_length: int,
) -> None:
    """Counts an item in a context. The decays are tables of `decay_factors`.

    A list that reaches `max_length` entries (0: unlimited) is pruned to its most important half. A pruned entry keeps
    its counts and is listed again when its item next occurs.
    """
    row = find_row(table, key)
    if row == NONE:
        row = table.used[0]
        table.used[0] += 1
        table.row_keys[row], table.rows[row, HEAD], table.rows[row, LOG_CLOCK] = key, NONE, log_clock
        _insert(table.row_slots, key, row)
    record, total = table.rows[row], table.row_counts[row]
    record[CONTEXT_CLOCK] += 1
    total[COUNT] += weight
    total[CONTEXT_DECAYED_COUNT] = total[CONTEXT_DECAYED_COUNT] * context_decay[1] + weight
    log_age = log_clock - record[LOG_CLOCK]
    total[LOG_DECAYED_COUNT] = total[LOG_DECAYED_COUNT] * decay_factor(log_decay, log_age) + weight
    record[LOG_CLOCK] = log_clock
    entry = find_entry(table, row, item)
    if entry == NONE:
        entry = table.used[1]
        table.used[1] += 1
        new = table.entries[entry]
        new[ROW], new[ITEM], new[NEXT] = row, item, UNLISTED
        new[ENTRY_CONTEXT_CLOCK], new[ENTRY_LOG_CLOCK] = record[CONTEXT_CLOCK], log_clock
        _insert(table.entry_slots, (np.int64(row) << 32) | item, entry)
    of_item, count = table.entries[entry], table.entry_counts[entry]
    context_age, log_age = record[CONTEXT_CLOCK] - of_item[ENTRY_CONTEXT_CLOCK], log_clock - of_item[ENTRY_LOG_CLOCK]
    count[COUNT] += weight
    count[CONTEXT_DECAYED_COUNT] = count[CONTEXT_DECAYED_COUNT] * decay_factor(context_decay, context_age) + weight
    count[LOG_DECAYED_COUNT] = count[LOG_DECAYED_COUNT] * decay_factor(log_decay, log_age) + weight
    of_item[ENTRY_CONTEXT_CLOCK], of_item[ENTRY_LOG_CLOCK] = record[CONTEXT_CLOCK], log_clock
    table.entry_times[entry] = time
    if of_item[NEXT] == UNLISTED:
        of_item[NEXT] = record[HEAD]
        record[HEAD] = entry
        record[LENGTH] += 1
        if record[LENGTH] == max_length:
            _prune_list(table, row, log_clock, log_decay)


@compiled
def _prune_list(table: CountTable, row: int, log_clock: int, log_decay: Array) -> None:
    """Keeps half of a list: the newest entry and those with the largest shares of plain and log-decayed counts."""
    record, total = table.rows[row], table.row_counts[row]
    length = record[LENGTH]
    listed, importance = np.empty(length, np.int32), np.empty(length, np.float32)
    entry = record[HEAD]
    for k in range(length):
        of_item, count = table.entries[entry], table.entry_counts[entry]
        decayed = count[LOG_DECAYED_COUNT] * decay_factor(log_decay, log_clock - of_item[ENTRY_LOG_CLOCK])
        listed[k], importance[k] = entry, count[COUNT] / total[COUNT] + decayed / total[LOG_DECAYED_COUNT]
        entry = of_item[NEXT]
    importance[0] = np.inf
    order = np.argsort(-importance, kind="mergesort")
    record[HEAD], record[LENGTH] = NONE, 0
    for k in range(length):
        entry = listed[order[k]]
        if k < length // 2:
            table.entries[entry, NEXT] = record[HEAD]
            record[HEAD] = entry
            record[LENGTH] += 1
        else:
            table.entries[entry, NEXT] = UNLISTED


@compiled(inline="always")
def decay_factor(factors: Array, age: int) -> float:
    """Returns the factor for an age in events; past the end of the table it is 0."""
    return factors[min(age, len(factors) - 1)]


def decay_factors(half_life: float) -> Array:
    """Returns float32[ages]: 2^(-age / half-life), and 0 from where that is below a millionth."""
    ages = np.arange(int(20 * half_life) + 2)
    return np.append(2.0 ** (-ages[:-1] / half_life), 0.0).astype(np.float32)
