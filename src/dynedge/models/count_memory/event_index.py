"""Event index: all events so far, by user and by item, in memory that grows by appending.

A user's events are contiguous (its history), and so are an item's (its occurrences). An occurrence names the user and
the place in that user's history, where the events around it are found; the items right before and after it are stored
in it too, since they are read most. Both kinds of blocks lie in pools that grow when full. A full block doubles: it
moves to a block of that size that another one has left, or else to the end of its pool. Appending an event costs
amortised O(1), counts nothing and does not depend on how events are grouped, so a state built event by event equals
one built in windows. Events of a window are appended before any of them is scored: readers skip events from their own
clock on.

The popularity of items is part of the state too, and counted apart from the index (popularity.py).

Legend: U users, I items, P and Q capacities of the pools, H half-lives of popularity, n events. A clock is the number
of events before an event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from dynedge.errors import DataError
from dynedge.models.base import State
from dynedge.models.count_memory.popularity import NOT_LISTED, RESCALE_ABOVE, Popularity
from dynedge.models.growable import doubled_capacity, grown
from dynedge.models.state_checks import at_least, check_names, check_tensor
from dynedge.ops.prefetch_row import prefetch_row
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled, compiled_without_counting

START, LENGTH, CAPACITY = range(3)  # columns of a block
FIRST_CAPACITY = 2  # of a block
RECENT_EVENTS = 128  # latest events of the whole log whose items are at hand
POOL_CAPACITY = 1024  # of a new pool
SIZES = 40  # of blocks: powers of two
AHEAD = 6  # events between the stages in which an event's rows are fetched
ITEM, CLOCK, NUMBER = range(3)  # columns of an event in a history; NUMBER: among the item's occurrences
USER, PLACE, AT, BEFORE, GAP, NEXT, NEXT_AT, NEXT_GAP = range(8)  # columns of an occurrence, see EventIndex
GAP_STEPS, LONGEST_GAP = 64, 1e18  # of a gap's code: steps for twice the time; in seconds
NONE, NEVER = -1, np.iinfo(np.int32).max  # no item; no clock
BLOCKS = ("user_blocks", ("history", "history_time")), ("item_blocks", ("occurrences",))


class EventIndex(NamedTuple):
    """The arrays of an index; they share the state's memory."""

    num_items: int
    clock: Array  # int64[1]: number of events so far
    used: Array  # int64[2]: entries in use of the two pools
    left: Array  # int64[2, SIZES]: a block of each size that was left, or -1; its first record names the next one
    user_blocks: Array  # int64[U, 3]: START, LENGTH and CAPACITY of a user's history
    item_blocks: Array  # int64[I, 3]: the same of an item's occurrences
    history: Array  # int32[P, 3]: ITEM, CLOCK and NUMBER of an event
    history_time: Array  # float64[P]
    # int32[Q, 8]: USER, PLACE in its history, clock AT; item BEFORE, code of the GAP to it; the same of the NEXT item
    occurrences: Array
    latest_items: Array  # int32[RECENT_EVENTS]: items of the latest events of the log, newest last; -1: none
    popularity: Array  # float32[I, H]: counts that decay by giving newer events a larger weight
    popularity_total: Array  # float64[H]
    event_weight: Array  # float64[H]: of the next event in `popularity`


def popularity_of(index: EventIndex) -> Popularity:
    """Returns the index's own popularity, not a copy; items are not listed."""
    half_lives = len(index.event_weight)
    own = index.popularity, index.popularity_total, index.event_weight, index.popularity[:0]
    return Popularity(*own, np.empty((0, 0), np.int32), np.full(half_lives, NOT_LISTED))


def empty(users: int, items: int, half_lives: int) -> State:
    """Returns the state before the first event."""
    state = State()
    state["clock"] = torch.zeros(1, dtype=torch.int64)
    state["used"] = torch.zeros(2, dtype=torch.int64)
    state["left"] = torch.full((2, SIZES), NONE)
    state["user_blocks"] = torch.zeros(users, 3, dtype=torch.int64)
    state["item_blocks"] = torch.zeros(items, 3, dtype=torch.int64)
    state["history"] = torch.zeros(POOL_CAPACITY, 3, dtype=torch.int32)
    state["history_time"] = torch.zeros(POOL_CAPACITY, dtype=torch.float64)
    state["occurrences"] = torch.zeros(POOL_CAPACITY, 8, dtype=torch.int32)
    state["latest_items"] = torch.full((RECENT_EVENTS,), NONE, dtype=torch.int32)
    state["popularity"] = torch.zeros(items, half_lives)
    state["popularity_total"] = torch.zeros(half_lives, dtype=torch.float64)
    state["event_weight"] = torch.ones(half_lives, dtype=torch.float64)
    return state


def check(state: State, users: int, items: int, half_lives: int) -> None:
    """Raises DataError unless everything in a state from a file is in range and consistent."""
    int32, int64, float64 = torch.int32, torch.int64, torch.float64
    check_names(state, (name for name in EventIndex._fields if name != "num_items"))
    clock = int(check_tensor(state, "clock", int64, (1,), 0, NEVER))
    history = check_tensor(state, "history", int32, (at_least(POOL_CAPACITY), 3))
    occurrences = check_tensor(state, "occurrences", int32, (at_least(POOL_CAPACITY), 8))
    check_tensor(state, "history_time", float64, (len(history),))
    used = check_tensor(state, "used", int64, (2,), 0)
    check_tensor(state, "user_blocks", int64, (users, 3), 0, len(history))
    check_tensor(state, "item_blocks", int64, (items, 3), 0, len(occurrences))
    check_tensor(state, "latest_items", int32, (RECENT_EVENTS,), NONE, items - 1)
    check_tensor(state, "left", int64, (2, SIZES), NONE)
    check_tensor(state, "popularity", torch.float32, (items, half_lives), 0)
    check_tensor(state, "popularity_total", float64, (half_lives,), 0)
    check_tensor(state, "event_weight", float64, (half_lives,), 0)
    index = view_of(state, items)
    if used[0] > len(history) or used[1] > len(occurrences) or not _is_consistent(index, clock):
        raise DataError("its index of events is inconsistent")


@compiled
def _is_consistent(index: EventIndex, clock: int) -> bool:
    """Whether all blocks are inside their pools and each event is once in a history and once among occurrences."""
    events, pools = 0, ((index.user_blocks, index.history), (index.item_blocks, index.occurrences))
    for pool, (blocks, records) in enumerate(pools):
        used, taken = index.used[pool], 0
        for row in range(len(blocks)):
            if blocks[row, LENGTH] > blocks[row, CAPACITY] or blocks[row, START] + blocks[row, CAPACITY] > used:
                return False
            taken += blocks[row, CAPACITY]
        for size in range(SIZES):
            start = index.left[pool, size]
            while start != NONE:
                taken += 1 << size
                if start < 0 or start + (1 << size) > used or taken > used:
                    return False
                start = left_after(records, start)
        if taken != used:
            return False
    for user in range(len(index.user_blocks)):
        start, length = index.user_blocks[user, START], index.user_blocks[user, LENGTH]
        events += length
        for place in range(length):
            event = index.history[start + place]
            item, at, number = event[ITEM], event[CLOCK], event[NUMBER]
            if not 0 <= item < len(index.item_blocks) or not 0 <= number < index.item_blocks[item, LENGTH]:
                return False
            if at < 0 or at >= clock or (place > 0 and at <= index.history[start + place - 1, CLOCK]):
                return False
            found = index.occurrences[index.item_blocks[item, START] + number]
            if found[USER] != user or found[PLACE] != place or found[AT] != at:
                return False
            before, gap, next_gap = NONE, NONE, NONE
            if place > 0:
                before, gap = index.history[start + place - 1, ITEM], gap_before(index, start + place)
            is_last = place + 1 == length
            if not is_last:
                next_gap = gap_before(index, start + place + 1)
            following = NONE if is_last else index.history[start + place + 1, ITEM]
            following_at = NEVER if is_last else index.history[start + place + 1, CLOCK]
            if found[BEFORE] != before or found[NEXT] != following or found[NEXT_AT] != following_at:
                return False
            if found[GAP] != gap or found[NEXT_GAP] != next_gap:
                return False
    for item in range(len(index.item_blocks)):
        start, length = index.item_blocks[item, START], index.item_blocks[item, LENGTH]
        events -= length
        for x in range(start + 1, start + length):
            if index.occurrences[x, AT] <= index.occurrences[x - 1, AT]:
                return False
    return bool(events == 0)


def view_of(state: State, items: int) -> EventIndex:
    """Returns the index in a state; both share their memory."""
    arrays: dict[str, Any] = {name: state[name].numpy() for name in EventIndex._fields if name != "num_items"}
    return EventIndex(num_items=items, **arrays)


def grow(state: State, users: int, items: int) -> None:
    """Extends the state to more users and items; the new ones have no events."""
    state["user_blocks"] = grown(state["user_blocks"], users, 0)
    state["item_blocks"] = grown(state["item_blocks"], items, 0)
    state["popularity"] = grown(state["popularity"], items, 0)


def append(state: State, items: int, user: Array, item: Array, time: Array) -> Array:
    """Appends n events; returns int32[n]: the place of each in its user's history.

    The latest items and the popularity do not change: see `count_popularity`.
    """
    check_room(state, len(user))
    places, done = np.empty(len(user), np.int32), 0
    while True:
        index = view_of(state, items)
        done += append_events(index, user[done:], item[done:], time[done:], places[done:])
        if done == len(user):
            return places
        for pool, rows in enumerate((user, item)):
            block, records = state[BLOCKS[pool][0]].numpy()[rows[done]], state[BLOCKS[pool][1][0]].numpy()
            needed = next_capacity(block)
            if needed and not _fits(index, pool, len(records), needed):
                reserve(state, pool, int(index.used[pool]) + room_for(block))


def check_room(state: State, events: int) -> None:
    if int(state["clock"]) + events > np.iinfo(np.int32).max:
        raise DataError("the count memory holds up to 2,147,483,647 events; train the model `recurrence` instead.")


def reserve(state: State, pool: int, entries: int) -> None:
    """Doubles the memory of a pool until it has so many entries."""
    for name in BLOCKS[pool][1]:
        before = state[name]
        capacity = doubled_capacity(len(before), entries)
        if capacity > len(before):
            longer = np.zeros((capacity, *before.shape[1:]), before.numpy().dtype)  # numpy asks for large pages
            state[name] = torch.from_numpy(longer)
            state[name][: len(before)] = before


@compiled_without_counting
def left_after(records: Array, start: int) -> int:
    """Returns the block of the same size that was left before the one at `start`, or -1."""
    return int((np.int64(records[start, 1]) << 32) | (np.int64(records[start, 0]) & 0xFFFFFFFF))


@compiled_without_counting
def link_left(records: Array, start: int, other: int) -> None:
    """Makes `other` the block of the same size that was left before the one at `start`."""
    records[start, 0], records[start, 1] = np.int32(other & 0xFFFFFFFF), np.int32(other >> 32)


@compiled
def block_size(capacity: int) -> int:
    """Returns the binary logarithm of a capacity."""
    size = 0
    while capacity >> size > 1:
        size += 1
    return size


@compiled(inline="always")
def next_capacity(block: Array) -> int:
    """Returns the capacity that a block needs for one more entry if it is full, else 0."""
    return max(2 * block[CAPACITY], FIRST_CAPACITY) if block[LENGTH] == block[CAPACITY] else 0


@compiled(inline="always")
def room_for(block: Array) -> int:
    """Returns the entries that are reserved for a block to move to."""
    return int(2 * block[CAPACITY] + FIRST_CAPACITY)


@compiled_without_counting
def _fits(index: EventIndex, pool: int, entries: int, capacity: int) -> bool:
    return index.left[pool, block_size(capacity)] != NONE or index.used[pool] + capacity <= entries


@compiled_without_counting
def _move(index: EventIndex, pool: int, records: Array, block: Array, capacity: int) -> tuple[int, int]:
    """Moves a block to one of a larger capacity and leaves the old one; returns the starts of both."""
    old, size = block[START], block_size(capacity)
    start = index.left[pool, size]
    if start == NONE:
        start = index.used[pool]
        index.used[pool] += capacity
    else:
        index.left[pool, size] = left_after(records, start)
    for x in range(block[LENGTH]):
        for column in range(records.shape[1]):
            records[start + x, column] = records[old + x, column]
    if block[CAPACITY]:
        size = block_size(block[CAPACITY])
        link_left(records, old, index.left[pool, size])
        index.left[pool, size] = old
    block[START], block[CAPACITY] = start, capacity
    return old, start


@compiled
def gap_code(seconds: float) -> int:
    """Returns the logarithm of the time between two events of a user: GAP_STEPS more for twice the time."""
    return int(GAP_STEPS * np.log2(1.0 + min(max(seconds, 0.0), LONGEST_GAP)))


@compiled_without_counting
def gap_before(index: EventIndex, x: int) -> int:
    """Returns the code of the gap between an event in the pool of histories and the one before it."""
    return gap_code(index.history_time[x] - index.history_time[x - 1])


@compiled_without_counting
def append_events(index: EventIndex, user: Array, item: Array, time: Array, places: Array) -> int:
    """Appends events until one does not fit into a pool; returns how many were appended."""
    users, items, history = index.user_blocks, index.item_blocks, index.history
    for k in range(len(user)):
        if k + 4 * AHEAD < len(user):  # what later events read lies far apart: each stage fetches what the next reads
            prefetch_row(users, user[k + 4 * AHEAD])
            prefetch_row(items, item[k + 4 * AHEAD])
            u, i = user[k + 3 * AHEAD], item[k + 3 * AHEAD]
            end = users[u, START] + users[u, LENGTH]
            prefetch_row(history, end - 1)
            prefetch_row(index.history_time, end)
            prefetch_row(index.occurrences, items[i, START] + items[i, LENGTH])
            u = user[k + 2 * AHEAD]
            if users[u, LENGTH] > 0:
                prefetch_row(items, history[users[u, START] + users[u, LENGTH] - 1, ITEM])
            u = user[k + AHEAD]
            if users[u, LENGTH] > 0:
                end = users[u, START] + users[u, LENGTH] - 1
                prefetch_row(index.occurrences, items[history[end, ITEM], START] + history[end, NUMBER])
        u, i = user[k], item[k]
        more_history, more_occurrences = next_capacity(users[u]), next_capacity(items[i])
        if more_history and not _fits(index, 0, len(index.history), more_history):
            return k
        if more_occurrences and not _fits(index, 1, len(index.occurrences), more_occurrences):
            return k
        if more_history:
            old, start = _move(index, 0, index.history, users[u], more_history)
            for x in range(users[u, LENGTH]):
                index.history_time[start + x] = index.history_time[old + x]
        if more_occurrences:
            _move(index, 1, index.occurrences, items[i], more_occurrences)
        clock, place, number, before, gap = index.clock[0], users[u, LENGTH], items[i, LENGTH], NONE, NONE
        x = users[u, START] + place
        index.history[x, ITEM], index.history[x, CLOCK], index.history[x, NUMBER] = i, clock, number
        index.history_time[x] = time[k]
        if place > 0:
            before = index.history[x - 1, ITEM]
            gap = gap_before(index, x)
            last = index.occurrences[items[before, START] + index.history[x - 1, NUMBER]]
            last[NEXT], last[NEXT_AT], last[NEXT_GAP] = i, clock, gap
        new = index.occurrences[items[i, START] + number]
        new[USER], new[PLACE], new[AT], new[BEFORE], new[GAP] = u, place, clock, before, gap
        new[NEXT], new[NEXT_AT], new[NEXT_GAP] = NONE, NEVER, NONE
        places[k] = place
        users[u, LENGTH] += 1
        items[i, LENGTH] += 1
        index.clock[0] += 1
    return len(user)


@compiled_without_counting
def first_from(records: Array, column: int, start: int, stop: int, clock: int) -> int:
    """Returns the first of the records start to stop - 1, ascending in `column`, that is not before `clock`."""
    step = 1
    while stop - step >= start and records[stop - step, column] >= clock:  # most often it is among the last ones
        step *= 2
    low, high = max(stop - step + 1, start), stop - step // 2
    while low < high:
        middle = (low + high) // 2
        if records[middle, column] < clock:
            low = middle + 1
        else:
            high = middle
    return low


def save_for_undo(state: State, user: int, item: int, growth: Array) -> Callable[[], None]:
    """Reserves memory for an event, saves what it will change, and returns the function that restores that.

    `growth` is that of `count_popularity`.
    """
    parts = []
    for pool, ((blocks, names), row) in enumerate(zip(BLOCKS, (user, item), strict=True)):
        start, length, capacity = state[blocks][row].tolist()
        reserve(state, pool, int(state["used"][pool]) + 2 * capacity + FIRST_CAPACITY)
        written = slice(start + length, start + length + 1)
        if length == capacity:  # the block will move
            larger = max(2 * capacity, FIRST_CAPACITY)
            left = int(state["left"][pool, block_size(larger)])
            to = int(state["used"][pool]) if left == NONE else left
            written = slice(to, to + larger)
        parts += [state[name][written] for name in names]
        parts += [state[names[0]][start]] if capacity else []  # of a block that is left, the first record changes
    rescales = bool((state["event_weight"].numpy() * growth > RESCALE_ABOVE).any())
    parts.append(state["popularity"] if rescales else state["popularity"][item])
    parts += [state["user_blocks"][user], state["item_blocks"][item]]
    start, length, _ = state["user_blocks"][user].tolist()
    if length:  # the occurrence before it will name the event as its next
        before, _, number = state["history"][start + length - 1].tolist()
        parts.append(state["occurrences"][int(state["item_blocks"][before, START]) + number])
    parts += [state[name] for name in ("clock", "used", "left", "latest_items", "popularity_total", "event_weight")]
    saved = [(part, part.clone()) for part in parts]

    def undo() -> None:
        for part, old in saved:
            part.copy_(old)

    return undo


@compiled
def mark_seen_items(index: EventIndex, user: Array, out: Array) -> None:
    """Sets out[k, i], bool[n, I], to True for every item in the history of user k."""
    for k in range(len(user)):
        start, length = index.user_blocks[user[k], START], index.user_blocks[user[k], LENGTH]
        for x in range(start, start + length):
            out[k, index.history[x, ITEM]] = True
