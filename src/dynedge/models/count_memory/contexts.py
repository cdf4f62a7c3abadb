"""What is remembered of a log so far, as counts: how popular items are, and what followed in which context.

An event is looked at from six contexts. Each says how likely the next item is, in a few ways (sources): by plain
counts, by counts that fade with the context's own events or with the log's, by how lately an item came.

    user   the user's own items                    last   what followed the last item
    pair   what followed the last two items        own    what followed the last item when this user was there
    five   as last, from the four items before it  near   what stands near the last ten items, before or after

Beside these, the same for all contexts: every item alike, and popularity at several half-lives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from dynedge.models.base import State
from dynedge.models.count_memory import hash_table as tables
from dynedge.models.count_memory import undo as tracks
from dynedge.models.count_memory.config import TABLES
from dynedge.models.count_memory.hash_table import (
    CLOCK,
    CLOCK_THEN,
    COUNT,
    EVENT,
    EVENT_THEN,
    HEAD,
    ITEM,
    NEXT,
    NONE,
    SIZE,
    Table,
    add,
    faded,
    fading,
    find_row,
)
from dynedge.models.growable import grown
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

PLAIN, BY_CONTEXT_EVENTS, BY_LOG_EVENTS, LATELY = range(4)  # ways a context counts; `five` and `near` have no LATELY
FIRST = {"user": 0, "last": 4, "pair": 8, "own": 12, "five": 16, "near": 19}  # a context's first source
SOURCES = 22
USER, LAST, PAIR, OWN, FIVE, NEAR = FIRST.values()

RING = 10  # last items kept of a user
REACH = 5  # events that stand near each other
NEAR_FADE, NEAR_POWER, FIVE_FADE = 0.8, 0.7, 0.8
FACTS = 15  # numbers that describe the question
ABOUT = 6  # numbers that describe an item of the user's own
BY_CONTEXT, BY_LOG = 2.0, 1000.0  # half-lives, in events
RESCALED = 1e12  # an event's weight at which all counts are divided by it


class Store(NamedTuple):
    items: int  # there are so many; `popular` may have room for more
    user: Table
    last: Table
    pair: Table
    own: Table
    near: Table
    clock: Array  # int64[1]: events so far
    ring: Array  # int32[U, RING]: a user's last items, newest first
    time: Array  # float64[U]: of the user's last event
    popular: Array  # float32[H, I or more]: counts, each fading by making newer ones heavier
    popular_total: Array  # float64[H]
    popular_weight: Array  # float64[H]: of an event now


class Fading(NamedTuple):
    by_context: Array
    by_log: Array
    growth: Array  # float64[H]
    after: Array  # float32[REACH]: what an item counts as near the one it came so many events after; 0: not
    before: Array  # float32[REACH]: and the other way round
    near: int  # last items that are asked what stands near them, RING at most
    longest: int  # items listed for a context other than the user


class Found(NamedTuple):
    """Room for the items that any context knows of, and what each source says of them."""

    slot: Array  # int32[I]: an item's place here, or -1
    items: Array  # int32[I]
    share: Array  # float32[I, SOURCES]
    about: Array  # float32[I, ABOUT]
    facts: Array  # float32[FACTS]
    there: Array  # bool[SOURCES]: whether the source has anything to say


def empty(users: int, items: int, half_lives: int) -> State:
    state = State()
    for name in TABLES:
        state.update(tables.empty(name))
    state["clock"] = torch.zeros(1, dtype=torch.int64)
    state["ring"] = torch.full((users, RING), NONE, dtype=torch.int32)
    state["time"] = torch.full((users,), -1.0, dtype=torch.float64)
    state["popular"] = torch.zeros(half_lives, items)
    state["popular_total"] = torch.zeros(half_lives, dtype=torch.float64)
    state["popular_weight"] = torch.ones(half_lives, dtype=torch.float64)
    return state


def make_room(state: State, events: int) -> None:
    """For `events` more."""
    for name in TABLES:
        tables.make_room(state, name, events * (2 * REACH if name == "near" else 1))


def of(state: State, items: int) -> Store:
    """The store in a state; it shares the state's memory."""
    known: dict[str, Any] = {name: tables.of(state, name) for name in TABLES}
    known |= {name: state[name].numpy() for name in Store._fields if name not in known and name != "items"}
    return Store(items=items, **known)


def grow(state: State, users: int, items: int) -> None:
    """Room for more users and items: nobody has met them."""
    state["ring"] = grown(state["ring"], users, NONE)
    state["time"] = grown(state["time"], users, -1.0)
    before = state["popular"]
    if items > before.shape[1]:
        state["popular"] = before.new_zeros(len(before), tables.double(before.shape[1], items))
        state["popular"][:, : before.shape[1]] = before


def suppose(store: Store, user: int, item: int) -> Callable[[], None]:
    """Before an event is taken in that is to be undone: what undoes it. There must be room for it."""
    ring = store.ring[user].tolist()
    recent = [other for other in ring[:REACH] if other != NONE]
    pairs: dict[str, list[tuple[int, int]]] = {
        "user": [(user, item)],
        "last": [(ring[0], item)],
        "pair": [((ring[1] << 32) | ring[0], item)],
        "own": [((user << 32) | ring[0], item)],
        "near": [(other, item) for other in recent] + [(item, other) for other in recent],
    }
    kept = {}
    for name, contexts in pairs.items():
        keys, items = np.array(contexts, np.int64).reshape(-1, 2).T.copy()
        kept[name] = tracks.keep(getattr(store, name), keys, items)
    whole = bool((store.popular_weight > RESCALED / 4).any())  # then all counts may be made smaller
    popular = store.popular.copy() if whole else store.popular[:, item].copy()
    others = [(array, array.copy()) for array in (store.clock, store.popular_total, store.popular_weight)]
    row, time = store.ring[user].copy(), float(store.time[user])

    def undo() -> None:
        for name, part in kept.items():
            tracks.undo(getattr(store, name), part)
        store.popular[:, slice(None) if whole else item] = popular
        for array, before in others:
            array[:] = before
        store.ring[user], store.time[user] = row, time

    return undo


def fadings(half_lives: tuple[float, ...], longest: int) -> Fading:
    growth = 2.0 ** (1 / np.asarray(half_lives, np.float64))
    near = (NEAR_FADE ** np.arange(REACH)).astype(np.float32)
    return Fading(fading(BY_CONTEXT), fading(BY_LOG), growth, near, near, RING, longest)


def room(items: int) -> Found:
    return Found(
        np.full(items, NONE, np.int32),
        np.zeros(items, np.int32),
        np.zeros((items, SOURCES), np.float32),
        np.zeros((items, ABOUT), np.float32),
        np.zeros(FACTS, np.float32),
        np.zeros(SOURCES, np.bool_),
    )


@compiled(inline="always")
def _pair(first: int, second: int) -> np.int64:
    return (np.int64(first) << 32) | np.int64(second)


@compiled
def take_in(store: Store, fading: Fading, keep: Array, user: int, item: int, time: float) -> None:
    """Remember an event. `keep`: which of the tables are kept at all."""
    event, ring = store.clock[0], store.ring[user]
    for h in range(len(fading.growth)):
        store.popular_weight[h] *= fading.growth[h]
        weight = store.popular_weight[h]
        store.popular[h, item] += weight
        store.popular_total[h] += weight
        if weight > RESCALED:
            for x in range(store.popular.shape[1]):
                store.popular[h, x] /= weight
            store.popular_total[h] /= weight
            store.popular_weight[h] = 1.0
    by_context, by_log = fading.by_context, fading.by_log
    if keep[0]:
        add(store.user, user, item, 1.0, event, time, by_context, by_log, 0)
    if keep[1] and ring[0] != NONE:
        add(store.last, ring[0], item, 1.0, event, time, by_context, by_log, fading.longest)
    if keep[2] and ring[1] != NONE:
        add(store.pair, _pair(ring[1], ring[0]), item, 1.0, event, time, by_context, by_log, fading.longest)
    if keep[3] and ring[0] != NONE:
        add(store.own, _pair(user, ring[0]), item, 1.0, event, time, by_context, by_log, fading.longest)
    if keep[4]:
        for r in range(REACH):
            if ring[r] != NONE and fading.after[r] > 0:
                add(store.near, ring[r], item, fading.after[r], event, time, by_context, by_log, fading.longest)
            if ring[r] != NONE and fading.before[r] > 0:
                add(store.near, item, ring[r], fading.before[r], event, time, by_context, by_log, fading.longest)
    for r in range(RING - 1, 0, -1):
        ring[r] = ring[r - 1]
    ring[0] = item
    store.time[user] = time
    store.clock[0] += 1


@compiled
def _slot(found: Found, size: int, item: int) -> int:
    slot = found.slot[item]
    if slot == NONE:
        slot = size
        found.slot[item], found.items[slot] = slot, item
        found.share[slot] = 0
        found.about[slot] = 0
    return slot


@compiled
def _read(
    table: Table, row: int, weight: float, first: int, ways: int, fading: Fading, found: Found, size: int, event: int
) -> int:
    """Add what a row says to its sources; the number of items found so far."""
    own, total = table.row[row], table.row_count[row]
    clock = own[CLOCK]
    plain = np.float32(weight / total[COUNT])
    by_context = np.float32(weight / total[COUNT + 1])
    still = total[COUNT + 2] * faded(fading.by_log, event - own[EVENT])
    by_log = np.float32(weight / still) if still > 0 else np.float32(0)
    lately = np.float32(weight / (np.log(clock) + 1.0))
    entry = own[HEAD]
    while entry != NONE:
        then, count = table.entry[entry], table.entry_count[entry]
        slot = _slot(found, size, then[ITEM])
        size = max(size, slot + 1)
        share = found.share[slot]
        share[first + PLAIN] += plain * count[COUNT]
        if ways > 1:
            lag = clock - then[CLOCK_THEN]
            share[first + BY_CONTEXT_EVENTS] += by_context * count[COUNT + 1] * faded(fading.by_context, lag)
            share[first + BY_LOG_EVENTS] += by_log * count[COUNT + 2] * faded(fading.by_log, event - then[EVENT_THEN])
            if ways > 3:
                share[first + LATELY] += lately / np.float32(1 + lag)
        entry = then[NEXT]
    found.there[first : first + ways] = True
    return size


@compiled
def _describe_row(table: Table, row: int, facts: Array, first: int) -> None:
    facts[first] = 0.2 * np.log1p(table.row_count[row, COUNT])
    facts[first + 1] = 0.2 * np.log1p(table.row[row, SIZE])


@compiled
def look(store: Store, fading: Fading, keep: Array, user: int, time: float, found: Found) -> int:
    """What every context says at this moment, into `found`; the number of items found. `forget` cleans up."""
    event, ring, size = store.clock[0], store.ring[user], 0
    facts = found.facts
    facts[:] = 0
    found.there[:] = False
    if keep[0]:
        row = find_row(store.user, user)
        if row != NONE:
            size = _read(store.user, row, 1.0, USER, 4, fading, found, size, event)
            _describe_own(store.user, row, time, found)
            _describe_row(store.user, row, facts, 0)
    if ring[0] == NONE:
        return size
    if keep[1]:
        row = find_row(store.last, ring[0])
        if row != NONE:
            size = _read(store.last, row, 1.0, LAST, 4, fading, found, size, event)
            _describe_row(store.last, row, facts, 2)
        size = _read_rows(store.last, ring, 1, 5, FIVE_FADE, 0.0, FIVE, 3, fading, found, size, event)
    if keep[2] and ring[1] != NONE:
        row = find_row(store.pair, _pair(ring[1], ring[0]))
        if row != NONE:
            size = _read(store.pair, row, 1.0, PAIR, 4, fading, found, size, event)
            _describe_row(store.pair, row, facts, 4)
    if keep[3]:
        row = find_row(store.own, _pair(user, ring[0]))
        if row != NONE:
            size = _read(store.own, row, 1.0, OWN, 4, fading, found, size, event)
            _describe_row(store.own, row, facts, 6)
    if keep[4]:
        row = find_row(store.near, ring[0])
        if row != NONE:
            _describe_row(store.near, row, facts, 8)
        size = _read_rows(
            store.near, ring, 0, fading.near, NEAR_FADE, 1 - NEAR_POWER, NEAR, 3, fading, found, size, event
        )
    gap = time - store.time[user]
    facts[10] = 1.0
    facts[11] = 0.1 * np.log1p(max(gap, 0.0))
    facts[12] = 1.0 if gap <= 0 else 0.0
    facts[13] = 1.0 if ring[0] == ring[1] else 0.0
    facts[14] = 1.0 if ring[0] == ring[2] else 0.0
    return size


@compiled
def _read_rows(
    table: Table,
    ring: Array,
    first: int,
    stop: int,
    fade: float,
    power: float,
    source: int,
    ways: int,
    fading: Fading,
    found: Found,
    size: int,
    event: int,
) -> int:
    """Several last items' rows as one: the older the lighter, times the row's total to a power."""
    rows, weights, sum_ = np.empty(RING, np.int64), np.empty(RING, np.float64), 0.0
    for r in range(first, stop):
        rows[r] = find_row(table, ring[r]) if ring[r] != NONE else NONE
        if rows[r] != NONE:
            weights[r] = fade ** (r - first) * table.row_count[rows[r], COUNT] ** power
            sum_ += weights[r]
    for r in range(first, stop):
        if rows[r] != NONE:
            size = _read(table, rows[r], weights[r] / sum_, source, ways, fading, found, size, event)
    return size


@compiled
def _describe_own(table: Table, row: int, time: float, found: Found) -> None:
    """How lately and how often the user's own items came."""
    entry, clock = table.row[row, HEAD], table.row[row, CLOCK]
    while entry != NONE:
        then = table.entry[entry]
        about = found.about[found.slot[then[ITEM]]]
        lag, since = clock - then[CLOCK_THEN], time - table.entry_time[entry]
        about[0] = 1.0
        about[1] = 0.3 * np.log1p(lag)
        about[2] = 0.1 * np.log1p(max(since, 0.0))
        about[3] = 1.0 if since <= 0 else 0.0
        about[4] = 1.0 if lag == 0 else 0.0
        about[5] = 1.0 if table.entry_count[entry, COUNT] == 1 else 0.0
        entry = then[NEXT]


@compiled
def own_items(table: Table, user: Array, out: Array) -> None:
    """out[k, i] becomes True for the items of user k's own row."""
    for k in range(len(user)):
        row = find_row(table, user[k])
        entry = table.row[row, HEAD] if row != NONE else NONE
        while entry != NONE:
            out[k, table.entry[entry, ITEM]] = True
            entry = table.entry[entry, NEXT]


@compiled
def forget(found: Found, size: int) -> None:
    for slot in range(size):
        found.slot[found.items[slot]] = NONE
