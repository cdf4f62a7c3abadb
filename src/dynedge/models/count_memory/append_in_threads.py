"""Appends the events of a large window to an event index in several threads: the bits of `event_index.append`.

Only where the blocks lie depends on the order of the events. So that alone is decided one event after the other, for
users' histories in one thread and for items' occurrences in another (`_place_events`). All records are then written
in threads, each once, to where they are after the window. The blocks that move are read before anything is written.
Memory that a block has left ends up with what it would hold if the blocks had moved one after the other.

Legend: n events of the window, m moves of blocks; a pool's rows are users or items; otherwise as in event_index.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynedge.models.base import State
from dynedge.models.count_memory.event_index import (
    AT,
    BEFORE,
    BLOCKS,
    CAPACITY,
    CLOCK,
    GAP,
    ITEM,
    LENGTH,
    NEVER,
    NEXT,
    NEXT_AT,
    NEXT_GAP,
    NONE,
    NUMBER,
    PLACE,
    SIZES,
    START,
    USER,
    EventIndex,
    block_size,
    check_room,
    gap_before,
    left_after,
    link_left,
    next_capacity,
    reserve,
    room_for,
    view_of,
)
from dynedge.ops.prefetch_row import prefetch_row
from dynedge.ops.thread_pool import part_of_range, run_in_parts, run_side_by_side
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

AHEAD = 8  # events between the stages in which an event's rows are fetched
# Columns of a move: the ROW whose block moves at an EVENT; where the OLD block begins, and its SIZE in entries; the
# block of that size that was left BEFORE it, and its move if that is in the window; the row that has TAKEN the old
# block since; where the records of earlier windows are SAVED. NONE where there is none.
ROW, EVENT, OLD, SIZE, LEFT_BEFORE, MOVE_BEFORE, TAKEN_BY, SAVED = range(8)


class PlacedEvents(NamedTuple):
    """The events of a window, and their places in the blocks of their users and items."""

    clock: int  # of the first event
    user: Array  # [n]
    item: Array  # [n]
    time: Array  # float64[n]
    place: Array  # int32[n]: in the user's history
    number: Array  # int32[n]: among the item's occurrences


class Pool(NamedTuple):
    """The blocks of all users or items."""

    blocks: Array  # int64[U, 3] or int64[I, 3]
    records: Array  # int32[P, 3] or int32[Q, 8]
    times: Array  # float64[P]; none of items' occurrences


def append_in_threads(state: State, items: int, user: Array, item: Array, time: Array) -> Array:
    """Appends n events; returns int32[n]: the place of each in its user's history."""
    check_room(state, len(user))
    index, n = view_of(state, items), len(user)
    events = PlacedEvents(int(index.clock[0]), user, item, time, np.empty(n, np.int32), np.empty(n, np.int32))
    moves, sizes = _place_all(index, events)
    for pool, (_, _, entries) in enumerate(sizes):
        reserve(state, pool, entries)
    index = view_of(state, items)
    pools = _pools(index)
    saved = [
        (np.empty((size, of_pool.records.shape[1]), np.int32), np.empty(size if len(of_pool.times) else 0))
        for of_pool, (_, size, _) in zip(pools, sizes, strict=True)
    ]
    for kernel in _save, _restore:
        for of_pool, of_moves, of_saved in zip(pools, moves, saved, strict=True):
            run_in_parts(kernel, len(of_moves), of_pool, of_moves, *of_saved)
    run_in_parts(_write_history, n, index, events)
    run_in_parts(_write_occurrences, n, index, events)
    for of_pool, of_moves in zip(pools, moves, strict=True):
        run_in_parts(_write_left, len(of_moves), of_pool, of_moves, events.clock)
    index.clock[0] += n
    return events.place


def _pools(index: EventIndex) -> tuple[Pool, Pool]:
    histories = Pool(index.user_blocks, index.history, index.history_time)
    return histories, Pool(index.item_blocks, index.occurrences, index.history_time[:0])


def _place_all(index: EventIndex, events: PlacedEvents) -> tuple[list[Array], list[tuple[int, int, int]]]:
    """Advances the blocks past the window; returns the moves of both pools, and the results of `_place_events`."""
    moves = [np.empty((len(events.user), 8), np.int64) for _ in BLOCKS]
    sizes, remaining = [(0, 0, 0), (0, 0, 0)], iter(range(2))
    rows, places = (events.user, events.item), (events.place, events.number)

    def place(thread: int) -> None:
        for pool in remaining:
            of_pool, used = _pools(index)[pool], index.used[pool : pool + 1]
            sizes[pool] = _place_events(of_pool, used, index.left[pool], rows[pool], places[pool], moves[pool])

    run_side_by_side(place, 2)
    return [of_pool[:count] for of_pool, (count, _, _) in zip(moves, sizes, strict=True)], sizes


@compiled
def _place_events(
    pool: Pool, used: Array, left: Array, rows: Array, places: Array, moves: Array
) -> tuple[int, int, int]:
    """Writes places[n] in the rows' blocks and the moves that this takes, and advances `used`, `left` and the blocks.

    Returns the numbers of moves, of records that are saved, and of entries that the pool needs.
    """
    blocks, count, saved, entries = pool.blocks, 0, 0, len(pool.records)
    top = np.full(SIZES, NONE)  # the move that has left the block at left[size]; NONE: that is of an earlier window
    for k in range(len(rows)):
        prefetch_row(blocks, rows[min(k + AHEAD, len(rows) - 1)])
        block = blocks[rows[k]]
        places[k], larger = block[LENGTH], next_capacity(block)
        if larger:
            move, size = moves[count], block_size(larger)
            move[ROW], move[EVENT], move[SIZE], move[TAKEN_BY], move[SAVED] = rows[k], k, block[CAPACITY], NONE, NONE
            start, upper = left[size], top[size]
            if start == NONE:
                start = used[0]
                if start + larger > entries:
                    while entries < start + room_for(block):
                        entries *= 2
                used[0] += larger
            elif upper == NONE:
                left[size] = left_after(pool.records, start)
            else:
                moves[upper, TAKEN_BY] = rows[k]
                left[size], top[size] = moves[upper, LEFT_BEFORE], moves[upper, MOVE_BEFORE]
            move[OLD] = block[START] if block[START] >= 0 else ~block[START]
            if block[CAPACITY]:
                if block[START] >= 0:
                    move[SAVED] = saved
                    saved += block[CAPACITY]
                size = block_size(block[CAPACITY])
                move[LEFT_BEFORE], move[MOVE_BEFORE] = left[size], top[size]
                left[size], top[size] = move[OLD], count
            block[START], block[CAPACITY] = ~start, larger  # ~: it has moved in this window
            count += 1
        block[LENGTH] += 1
    for m in range(count):
        prefetch_row(blocks, moves[min(m + AHEAD, count - 1), ROW])
        block = blocks[moves[m, ROW]]
        block[START] = block[START] if block[START] >= 0 else ~block[START]
    return count, saved, entries


@compiled_without_counting
def _copy_records(
    records: Array, times: Array, start: int, to_records: Array, to_times: Array, to: int, size: int
) -> None:
    for x in range(size):
        for column in range(records.shape[1]):
            to_records[to + x, column] = records[start + x, column]
    for x in range(size if len(times) else 0):
        to_times[to + x] = times[start + x]


@compiled_without_counting
def _save(part: int, parts: int, pool: Pool, moves: Array, records: Array, times: Array) -> None:
    """Copies the blocks of earlier windows that move."""
    first, last = part_of_range(0, len(moves), part, parts)
    for m in range(first, last):
        if moves[m, SAVED] != NONE:
            _copy_records(pool.records, pool.times, moves[m, OLD], records, times, moves[m, SAVED], moves[m, SIZE])


@compiled_without_counting
def _restore(part: int, parts: int, pool: Pool, moves: Array, records: Array, times: Array) -> None:
    """Copies them to where they are after the window."""
    first, last = part_of_range(0, len(moves), part, parts)
    for m in range(first, last):
        if moves[m, SAVED] != NONE:
            to = pool.blocks[moves[m, ROW], START]
            _copy_records(records, times, moves[m, SAVED], pool.records, pool.times, to, moves[m, SIZE])


@compiled_without_counting
def _write_history(part: int, parts: int, index: EventIndex, events: PlacedEvents) -> None:
    users, history, user, n = index.user_blocks, index.history, events.user, len(events.user)
    first, last = part_of_range(0, n, part, parts)
    for k in range(first, last):
        prefetch_row(users, user[min(k + 2 * AHEAD, n - 1)])
        ahead = min(k + AHEAD, n - 1)
        prefetch_row(history, users[user[ahead], START] + events.place[ahead])
        prefetch_row(index.history_time, users[user[ahead], START] + events.place[ahead])
        x = users[user[k], START] + events.place[k]
        history[x, ITEM], history[x, CLOCK], history[x, NUMBER] = events.item[k], events.clock + k, events.number[k]
        index.history_time[x] = events.time[k]


@compiled_without_counting
def _write_occurrences(part: int, parts: int, index: EventIndex, events: PlacedEvents) -> None:
    """The events after and before an occurrence are in the history; one of an earlier window gets its next event."""
    users, items, history, occurrences = index.user_blocks, index.item_blocks, index.history, index.occurrences
    user, item, n = events.user, events.item, len(events.user)
    first, last = part_of_range(0, n, part, parts)
    for k in range(first, last):
        if k + 4 * AHEAD < n:  # each stage fetches what the next one reads
            prefetch_row(users, user[k + 4 * AHEAD])
            prefetch_row(items, item[k + 4 * AHEAD])
            ahead = k + 3 * AHEAD
            x = users[user[ahead], START] + events.place[ahead]
            prefetch_row(history, x - 1)
            prefetch_row(history, x + 1)
            prefetch_row(index.history_time, x)
            prefetch_row(occurrences, items[item[ahead], START] + events.number[ahead])
            ahead = k + 2 * AHEAD
            if events.place[ahead] > 0:
                prefetch_row(items, history[users[user[ahead], START] + events.place[ahead] - 1, ITEM])
            ahead = k + AHEAD
            if events.place[ahead] > 0:
                x = users[user[ahead], START] + events.place[ahead] - 1
                if history[x, CLOCK] < events.clock:
                    prefetch_row(occurrences, items[history[x, ITEM], START] + history[x, NUMBER])
        u, place, clock = user[k], events.place[k], events.clock + k
        x, before, gap = users[u, START] + place, NONE, NONE
        if place > 0:
            before, gap = history[x - 1, ITEM], gap_before(index, x)
            if history[x - 1, CLOCK] < events.clock:
                earlier = occurrences[items[before, START] + history[x - 1, NUMBER]]
                earlier[NEXT], earlier[NEXT_AT], earlier[NEXT_GAP] = item[k], clock, gap
        new = occurrences[items[item[k], START] + events.number[k]]
        new[USER], new[PLACE], new[AT], new[BEFORE], new[GAP] = u, place, clock, before, gap
        new[NEXT], new[NEXT_AT], new[NEXT_GAP] = NONE, NEVER, NONE
        if place + 1 < users[u, LENGTH]:
            new[NEXT], new[NEXT_AT] = history[x + 1, ITEM], history[x + 1, CLOCK]
            new[NEXT_GAP] = gap_before(index, x + 1)


@compiled_without_counting
def _write_left(part: int, parts: int, pool: Pool, moves: Array, clock: int) -> None:
    """Writes what old blocks held when they were left, where no row that has taken one since has overwritten it."""
    blocks, records, times = pool
    first, last = part_of_range(0, len(moves), part, parts)
    for m in range(first, last):
        old, size, taker, begin = moves[m, OLD], moves[m, SIZE], moves[m, TAKEN_BY], 0
        if size == 0 or (taker != NONE and blocks[taker, START] != old):  # the taker has left it too
            continue
        if taker != NONE:
            begin = blocks[taker, LENGTH]
        start = blocks[moves[m, ROW], START]
        _copy_records(records, times, start + begin, records, times, old + begin, size - begin)
        for x in range(old + begin, old + size if records.shape[1] > NEXT_GAP else 0):
            if records[x, NEXT_AT] >= clock + moves[m, EVENT]:
                records[x, NEXT], records[x, NEXT_AT], records[x, NEXT_GAP] = NONE, NEVER, NONE
        if taker == NONE:
            link_left(records, old, moves[m, LEFT_BEFORE])
