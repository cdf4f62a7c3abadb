"""Context counts: the popularity of items, and which items followed in which context.

Every event is counted in five tables. Six contexts read them; each gives the probability of the next item in up to
four ways, here called sources: by plain counts, by counts that decay with the events of the context, by counts that
decay with the events of the log, and by recency.

    user        the user's own items
    last        what followed the last item
    last_two    what followed the last two items
    user_last   what followed the last item in this user's events
    earlier     as `last`, for the four items before the last one
    near        what occurred near the last ten items, before or after

Two more kinds of source do not depend on the context: the uniform distribution, and popularity at several half-lives.

Legend: U users, I items, H half-lives of popularity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from dynedge.errors import UsageError
from dynedge.models.base import State
from dynedge.models.count_memory import hash_table
from dynedge.models.count_memory.config import TABLES
from dynedge.models.count_memory.hash_table import (
    HEAD,
    ITEM,
    NEXT,
    NONE,
    CountTable,
    add_count,
    decay_factors,
    find_row,
)
from dynedge.models.count_memory.undo import restore_rows, save_rows
from dynedge.models.growable import grown
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

PLAIN, CONTEXT_DECAYED, LOG_DECAYED, RECENCY = range(4)  # sources of a context; `earlier` and `near` have no RECENCY
FIRST_SOURCE = {"user": 0, "last": 4, "last_two": 8, "user_last": 12, "earlier": 16, "near": 19}
CONTEXT_SOURCES = 22
USER, LAST, LAST_TWO, USER_LAST, EARLIER, NEAR = FIRST_SOURCE.values()

RECENT_ITEMS = 10  # size of a user's ring buffer
NEAR_DISTANCE = 5  # events of a user that are near each other
NEAR_DECAY, NEAR_POWER, EARLIER_DECAY = 0.8, 0.7, 0.8
CONTEXT_HALF_LIFE, LOG_HALF_LIFE = 2.0, 1000.0  # in events
RESCALE_ABOVE = 1e12  # weight of an event at which all popularity counts are divided by it


class ContextCounts(NamedTuple):
    """What is counted, as arrays that share the state's memory."""

    num_items: int  # `popularity` may have a larger capacity
    user: CountTable
    last: CountTable
    last_two: CountTable
    user_last: CountTable
    near: CountTable
    clock: Array  # int64[1]: number of events so far
    recent_items: Array  # int32[U, RECENT_ITEMS]: ring buffer of a user's last items, newest first
    last_time: Array  # float64[U]: time of the user's last event
    popularity: Array  # float32[H, I or more]: counts that decay by giving newer events a larger weight
    popularity_total: Array  # float64[H]
    event_weight: Array  # float64[H]: of the next event in `popularity`


class CountSettings(NamedTuple):
    """How events are counted and read."""

    tables: Array  # bool[5]: which of TABLES are in use
    context_decay: Array  # float32[ages], see hash_table.decay_factors
    log_decay: Array  # float32[ages]
    weight_growth: Array  # float64[H]: of `event_weight`, per event
    near_after: Array  # float32[NEAR_DISTANCE]: weight of an item near the one it came 1, 2.. events after; 0: none
    near_before: Array  # float32[NEAR_DISTANCE]: weight of the earlier item near the later one
    near_items: int  # number of last items that `near` reads, RECENT_ITEMS at most
    max_list_length: int  # of every table but `user`


def count_settings(tables: tuple[str, ...], half_lives: tuple[float, ...], max_list_length: int) -> CountSettings:
    """Returns the default settings for these tables, half-lives of popularity and lists."""
    for name in tables:
        if name not in TABLES:
            raise UsageError(f"model.contexts: {name!r} is not a context; choose from {', '.join(TABLES)}.")
    near = (NEAR_DECAY ** np.arange(NEAR_DISTANCE)).astype(np.float32)
    return CountSettings(
        tables=np.array([name in tables for name in TABLES]),
        context_decay=decay_factors(CONTEXT_HALF_LIFE),
        log_decay=decay_factors(LOG_HALF_LIFE),
        weight_growth=2.0 ** (1 / np.asarray(half_lives, np.float64)),
        near_after=near,
        near_before=near,
        near_items=RECENT_ITEMS,
        max_list_length=max_list_length,
    )


def empty(users: int, items: int, half_lives: int) -> State:
    """Returns the state before the first event."""
    state = State()
    for name in TABLES:
        state.update(hash_table.empty(name))
    state["clock"] = torch.zeros(1, dtype=torch.int64)
    state["recent_items"] = torch.full((users, RECENT_ITEMS), NONE, dtype=torch.int32)
    state["last_time"] = torch.full((users,), -1.0, dtype=torch.float64)
    state["popularity"] = torch.zeros(half_lives, items)
    state["popularity_total"] = torch.zeros(half_lives, dtype=torch.float64)
    state["event_weight"] = torch.ones(half_lives, dtype=torch.float64)
    return state


def reserve(state: State, events: int) -> None:
    """Grows the tables of a state, where needed, so that `events` more fit."""
    for name in TABLES:
        hash_table.reserve(state, name, events * (2 * NEAR_DISTANCE if name == "near" else 1))


def view_of(state: State, items: int) -> ContextCounts:
    """Returns the counts in a state; both share their memory."""
    parts: dict[str, Any] = {name: hash_table.view_of(state, name) for name in TABLES}
    arrays = (name for name in ContextCounts._fields if name not in TABLES and name != "num_items")
    parts |= {name: state[name].numpy() for name in arrays}
    return ContextCounts(num_items=items, **parts)


def grow(state: State, users: int, items: int) -> None:
    """Extends the state to more users and items; the new ones have no events."""
    state["recent_items"] = grown(state["recent_items"], users, NONE)
    state["last_time"] = grown(state["last_time"], users, -1.0)
    before = state["popularity"]
    if items > before.shape[1]:
        state["popularity"] = before.new_zeros(len(before), hash_table.doubled_capacity(before.shape[1], items))
        state["popularity"][:, : before.shape[1]] = before


def save_for_undo(counts: ContextCounts, user: int, item: int) -> Callable[[], None]:
    """Saves what counting an event will change, and returns the function that restores it.

    To be called before `count_event`, with capacity for the event reserved.
    """
    recent = counts.recent_items[user].tolist()
    neighbours = [other for other in recent[:NEAR_DISTANCE] if other != NONE]
    counted: dict[str, list[tuple[int, int]]] = {
        "user": [(user, item)],
        "last": [(recent[0], item)],
        "last_two": [((recent[1] << 32) | recent[0], item)],
        "user_last": [((user << 32) | recent[0], item)],
        "near": [(other, item) for other in neighbours] + [(item, other) for other in neighbours],
    }
    saved = {}
    for name, pairs in counted.items():
        keys, items = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
        saved[name] = save_rows(getattr(counts, name), keys, items)
    may_rescale = bool((counts.event_weight > RESCALE_ABOVE / 4).any())
    popularity = counts.popularity.copy() if may_rescale else counts.popularity[:, item].copy()
    small = [(array, array.copy()) for array in (counts.clock, counts.popularity_total, counts.event_weight)]
    recent_items, last_time = counts.recent_items[user].copy(), float(counts.last_time[user])

    def undo() -> None:
        for name, rows in saved.items():
            restore_rows(getattr(counts, name), rows)
        counts.popularity[:, slice(None) if may_rescale else item] = popularity
        for array, before in small:
            array[:] = before
        counts.recent_items[user], counts.last_time[user] = recent_items, last_time

    return undo


@compiled(inline="always")
def pair_key(first: int, second: int) -> np.int64:
    """Returns the key of a context of two ids."""
    return (np.int64(first) << 32) | np.int64(second)


@compiled
def count_event(counts: ContextCounts, settings: CountSettings, user: int, item: int, time: float) -> None:
    """Counts an event in all tables in use."""
    clock, recent = counts.clock[0], counts.recent_items[user]
    _count_popularity(counts, settings, item)
    tables, context_decay, log_decay = settings.tables, settings.context_decay, settings.log_decay
    longest = settings.max_list_length
    if tables[0]:
        add_count(counts.user, user, item, 1.0, clock, time, context_decay, log_decay, 0)
    if tables[1] and recent[0] != NONE:
        add_count(counts.last, recent[0], item, 1.0, clock, time, context_decay, log_decay, longest)
    if tables[2] and recent[1] != NONE:
        key = pair_key(recent[1], recent[0])
        add_count(counts.last_two, key, item, 1.0, clock, time, context_decay, log_decay, longest)
    if tables[3] and recent[0] != NONE:
        key = pair_key(user, recent[0])
        add_count(counts.user_last, key, item, 1.0, clock, time, context_decay, log_decay, longest)
    if tables[4]:
        for r in range(NEAR_DISTANCE):
            after, before = settings.near_after[r], settings.near_before[r]
            if recent[r] != NONE and after > 0:
                add_count(counts.near, recent[r], item, after, clock, time, context_decay, log_decay, longest)
            if recent[r] != NONE and before > 0:
                add_count(counts.near, item, recent[r], before, clock, time, context_decay, log_decay, longest)
    for r in range(RECENT_ITEMS - 1, 0, -1):
        recent[r] = recent[r - 1]
    recent[0] = item
    counts.last_time[user] = time
    counts.clock[0] += 1


@compiled
def _count_popularity(counts: ContextCounts, settings: CountSettings, item: int) -> None:
    for h in range(len(settings.weight_growth)):
        counts.event_weight[h] *= settings.weight_growth[h]
        weight = counts.event_weight[h]
        counts.popularity[h, item] += weight
        counts.popularity_total[h] += weight
        if weight > RESCALE_ABOVE:
            for x in range(counts.popularity.shape[1]):
                counts.popularity[h, x] /= weight
            counts.popularity_total[h] /= weight
            counts.event_weight[h] = 1.0


@compiled
def count_events(counts: ContextCounts, settings: CountSettings, user: Array, item: Array, time: Array) -> None:
    """Counts events in order, without scoring them."""
    for k in range(len(user)):
        count_event(counts, settings, user[k], item[k], time[k])


@compiled
def mark_seen_items(table: CountTable, user: Array, out: Array) -> None:
    """Sets out[k, i], bool[n, I], to True for every item in the row of user k in the table `user`."""
    for k in range(len(user)):
        row = find_row(table, user[k])
        entry = table.rows[row, HEAD] if row != NONE else NONE
        while entry != NONE:
            out[k, table.entries[entry, ITEM]] = True
            entry = table.entries[entry, NEXT]
