"""Reading the counts: the items that any context has seen for a query, their probability under each source, features.

A query is a user and a time. Its candidates are the union of the lists of all contexts; every other item has
probability 0 under all context sources.

Legend: I items.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.count_memory.contexts import (
    CONTEXT_DECAYED,
    CONTEXT_SOURCES,
    EARLIER,
    EARLIER_DECAY,
    LAST,
    LAST_TWO,
    LOG_DECAYED,
    NEAR,
    NEAR_DECAY,
    NEAR_POWER,
    PLAIN,
    RECENCY,
    RECENT_ITEMS,
    USER,
    USER_LAST,
    ContextCounts,
    CountSettings,
    pair_key,
)
from dynedge.models.count_memory.hash_table import (
    CONTEXT_CLOCK,
    CONTEXT_DECAYED_COUNT,
    COUNT,
    ENTRY_CONTEXT_CLOCK,
    ENTRY_LOG_CLOCK,
    HEAD,
    ITEM,
    LENGTH,
    LOG_CLOCK,
    LOG_DECAYED_COUNT,
    NEXT,
    NONE,
    CountTable,
    decay_factor,
    find_row,
)
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

QUERY_FEATURES = 15  # sizes of the contexts, time since the user's last event, whether the last items are the same
ITEM_FEATURES = 6  # of the user's own items: whether it is one, how recently and how often it occurred; else 0


class CandidateBuffer(NamedTuple):
    """Scratch for the candidates of one query at a time, which take the slots from 0 on."""

    slot: Array  # int32[I]: slot of an item, or -1
    items: Array  # int32[I]: item in each slot
    probability: Array  # float32[I, CONTEXT_SOURCES], by slot
    item_features: Array  # float32[I, ITEM_FEATURES], by slot
    query_features: Array  # float32[QUERY_FEATURES]
    source_mask: Array  # bool[CONTEXT_SOURCES]: whether the source has seen the context of the query


def allocate_buffer(items: int) -> CandidateBuffer:
    """Returns an empty buffer for logs of up to `items` items."""
    return CandidateBuffer(
        np.full(items, NONE, np.int32),
        np.zeros(items, np.int32),
        np.zeros((items, CONTEXT_SOURCES), np.float32),
        np.zeros((items, ITEM_FEATURES), np.float32),
        np.zeros(QUERY_FEATURES, np.float32),
        np.zeros(CONTEXT_SOURCES, np.bool_),
    )


@compiled
def collect_candidates(
    counts: ContextCounts, settings: CountSettings, user: int, time: float, buffer: CandidateBuffer
) -> int:
    """Fills an empty buffer for a query and returns the number of candidates; `clear` empties it again."""
    tables, clock, recent, size = settings.tables, counts.clock[0], counts.recent_items[user], 0
    features = buffer.query_features
    features[:] = 0
    buffer.source_mask[:] = False
    if tables[0]:
        row = find_row(counts.user, user)
        if row != NONE:
            size = _read_row(counts.user, row, 1.0, USER, 4, settings, buffer, size, clock)
            _set_item_features(counts.user, row, time, buffer)
            _set_row_features(counts.user, row, features, 0)
    if recent[0] == NONE:
        return size
    if tables[1]:
        row = find_row(counts.last, recent[0])
        if row != NONE:
            size = _read_row(counts.last, row, 1.0, LAST, 4, settings, buffer, size, clock)
            _set_row_features(counts.last, row, features, 2)
        size = _read_rows(counts.last, recent, 1, 5, EARLIER_DECAY, 0.0, EARLIER, 3, settings, buffer, size, clock)
    if tables[2] and recent[1] != NONE:
        row = find_row(counts.last_two, pair_key(recent[1], recent[0]))
        if row != NONE:
            size = _read_row(counts.last_two, row, 1.0, LAST_TWO, 4, settings, buffer, size, clock)
            _set_row_features(counts.last_two, row, features, 4)
    if tables[3]:
        row = find_row(counts.user_last, pair_key(user, recent[0]))
        if row != NONE:
            size = _read_row(counts.user_last, row, 1.0, USER_LAST, 4, settings, buffer, size, clock)
            _set_row_features(counts.user_last, row, features, 6)
    if tables[4]:
        row = find_row(counts.near, recent[0])
        if row != NONE:
            _set_row_features(counts.near, row, features, 8)
        stop, power = settings.near_items, 1 - NEAR_POWER
        size = _read_rows(counts.near, recent, 0, stop, NEAR_DECAY, power, NEAR, 3, settings, buffer, size, clock)
    gap = time - counts.last_time[user]
    features[10] = 1.0
    features[11] = 0.1 * np.log1p(max(gap, 0.0))
    features[12] = 1.0 if gap <= 0 else 0.0
    features[13] = 1.0 if recent[0] == recent[1] else 0.0
    features[14] = 1.0 if recent[0] == recent[2] else 0.0
    return size


@compiled
def clear(buffer: CandidateBuffer, size: int) -> None:
    """Empties a buffer of `size` candidates."""
    for slot in range(size):
        buffer.slot[buffer.items[slot]] = NONE


@compiled
def _slot_of(buffer: CandidateBuffer, size: int, item: int) -> int:
    """Returns the slot of an item, which is `size` for a new candidate."""
    slot = buffer.slot[item]
    if slot == NONE:
        slot = size
        buffer.slot[item], buffer.items[slot] = slot, item
        buffer.probability[slot] = 0
        buffer.item_features[slot] = 0
    return slot


@compiled
def _read_row(
    table: CountTable,
    row: int,
    weight: float,
    first_source: int,
    sources: int,
    settings: CountSettings,
    buffer: CandidateBuffer,
    size: int,
    clock: int,
) -> int:
    """Adds `weight` times the probabilities of a row to its sources; returns the number of candidates so far."""
    record, total = table.rows[row], table.row_counts[row]
    context_clock = record[CONTEXT_CLOCK]
    plain = np.float32(weight / total[COUNT])
    context_decayed = np.float32(weight / total[CONTEXT_DECAYED_COUNT])
    remaining = total[LOG_DECAYED_COUNT] * decay_factor(settings.log_decay, clock - record[LOG_CLOCK])
    log_decayed = np.float32(weight / remaining) if remaining > 0 else np.float32(0)
    recency = np.float32(weight / (np.log(context_clock) + 1.0))
    entry = record[HEAD]
    while entry != NONE:
        of_item, count = table.entries[entry], table.entry_counts[entry]
        slot = _slot_of(buffer, size, of_item[ITEM])
        size = max(size, slot + 1)
        out = buffer.probability[slot]
        out[first_source + PLAIN] += plain * count[COUNT]
        if sources > 1:
            age = context_clock - of_item[ENTRY_CONTEXT_CLOCK]
            factor = decay_factor(settings.context_decay, age)
            out[first_source + CONTEXT_DECAYED] += context_decayed * count[CONTEXT_DECAYED_COUNT] * factor
            factor = decay_factor(settings.log_decay, clock - of_item[ENTRY_LOG_CLOCK])
            out[first_source + LOG_DECAYED] += log_decayed * count[LOG_DECAYED_COUNT] * factor
            if sources > 3:
                out[first_source + RECENCY] += recency / np.float32(1 + age)
        entry = of_item[NEXT]
    buffer.source_mask[first_source : first_source + sources] = True
    return size


@compiled
def _read_rows(
    table: CountTable,
    recent: Array,
    first: int,
    stop: int,
    decay: float,
    power: float,
    first_source: int,
    sources: int,
    settings: CountSettings,
    buffer: CandidateBuffer,
    size: int,
    clock: int,
) -> int:
    """Reads the rows of the last items `first` to `stop` - 1 as one distribution.

    A row's weight falls by `decay` with each older item, and is proportional to its plain total to the given power.
    """
    rows, weights, total = np.empty(RECENT_ITEMS, np.int64), np.empty(RECENT_ITEMS, np.float64), 0.0
    for r in range(first, stop):
        rows[r] = find_row(table, recent[r]) if recent[r] != NONE else NONE
        if rows[r] != NONE:
            weights[r] = decay ** (r - first) * table.row_counts[rows[r], COUNT] ** power
            total += weights[r]
    for r in range(first, stop):
        if rows[r] != NONE:
            weight = weights[r] / total
            size = _read_row(table, rows[r], weight, first_source, sources, settings, buffer, size, clock)
    return size


@compiled
def _set_row_features(table: CountTable, row: int, features: Array, first: int) -> None:
    features[first] = 0.2 * np.log1p(table.row_counts[row, COUNT])
    features[first + 1] = 0.2 * np.log1p(table.rows[row, LENGTH])


@compiled
def _set_item_features(table: CountTable, row: int, time: float, buffer: CandidateBuffer) -> None:
    """Sets the features of the user's own items, which must be in the buffer."""
    entry, context_clock = table.rows[row, HEAD], table.rows[row, CONTEXT_CLOCK]
    while entry != NONE:
        of_item = table.entries[entry]
        features = buffer.item_features[buffer.slot[of_item[ITEM]]]
        age, elapsed = context_clock - of_item[ENTRY_CONTEXT_CLOCK], time - table.entry_times[entry]
        features[0] = 1.0
        features[1] = 0.3 * np.log1p(age)
        features[2] = 0.1 * np.log1p(max(elapsed, 0.0))
        features[3] = 1.0 if elapsed <= 0 else 0.0
        features[4] = 1.0 if age == 0 else 0.0
        features[5] = 1.0 if table.entry_counts[entry, COUNT] == 1 else 0.0
        entry = of_item[NEXT]
