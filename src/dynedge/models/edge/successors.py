"""Successor bonus: learned score offsets for the items that lately followed the user's last item.

A state of fixed width cannot list what followed an item, and an embedding learns it slowly, and not at all for a new
item. So each item has a ring buffer of the items that came next, in its users' sequences. The offset of a
listed item depends on its bucket: how far back in the buffer it last occurs, how often, how full the buffer is,
whether it was this user's own next item, and whether it followed the user's last two items.
Buckets depend on no parameter, so for training the lists are made ahead of the step, on the host.

Legend: n events of a window, L listed items of all events together, U users, I items.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dynedge.data.windows import Window
from dynedge.errors import DataError
from dynedge.models.base import State
from dynedge.models.edge.repeat_bonus import RepeatLists
from dynedge.models.state_checks import check_range, check_tensor
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

ITEMS, COUNT, LAST = "next_items", "next_count", "next_last"  # names in the state
NONE = -1
LENGTH = 128  # of a ring buffer
AGES, COUNTS, LENGTHS = 8, 6, 8  # octaves of the position; 1, 2, 3–4, … 17 or more; octaves of the buffer's length
KINDS = 4  # 1: the user's own next item; 2: after the same two items
BUCKETS = KINDS * AGES * COUNTS * LENGTHS
ITEM, USER, BEFORE = 0, 1, 2  # columns of a ring buffer: the next item, its user, and the item before the two
OCTAVE = np.log2(np.arange(2 * LENGTH).clip(1)).astype(np.int32)  # ⌊log2⌋ of numbers from 1 on


def empty_lists(users: int, items: int) -> State:
    """The state before the first event."""
    return State(
        {
            ITEMS: torch.full((items, LENGTH, 3), NONE, dtype=torch.int32),
            COUNT: torch.zeros(items, dtype=torch.int64),
            LAST: torch.full((users, 2), NONE, dtype=torch.int32),  # the last item and the one before it
        }
    )


def check(state: State, users: int, items: int) -> None:
    """Raises DataError unless the lists in a state from a file are in range."""
    ring = check_tensor(state, ITEMS, torch.int32, (items, LENGTH, 3), NONE, max(users, items) - 1)
    count = check_tensor(state, COUNT, torch.int64, (items,), 0, 2**53)
    check_tensor(state, LAST, torch.int32, (users, 2), NONE, items - 1)
    for column in (ITEM, BEFORE):
        check_range(ITEMS, ring[:, :, column], NONE, items - 1)
    is_stored = torch.arange(LENGTH) < count[:, None]
    if bool((ring[:, :, ITEM] < 0).logical_and_(is_stored).any()):
        raise DataError(f"'{ITEMS}' has fewer items than '{COUNT}' says")


def start_values(items: int) -> Tensor:
    """[BUCKETS]: the offsets before training, as if one event in twenty were drawn from the ring buffer.

    What the user did itself, or followed the same two items, counts as a quarter of the buffer at least.
    """
    bucket = torch.arange(BUCKETS)
    often, fullness, kind = bucket // LENGTHS % COUNTS, bucket % LENGTHS, bucket // (BUCKETS // KINDS)
    share = torch.exp2(often - fullness.double()).clamp(max=1)
    share = torch.where(kind > 0, share.clamp_min(0.25), share)
    return torch.log1p(items * share / 20).float()


def lists_before_events(window: Window, state: State) -> RepeatLists:
    """The lists as they are before each event of the window; counts its events in the state."""
    return _lists(window.user, window.item, state)


def lists_now(users: Tensor, state: State) -> RepeatLists:
    """The current lists of these users; the state stays as it is."""
    return _lists(users.int().cpu().numpy(), np.zeros(0, np.int32), state)


def count_events(window: Window, state: State) -> None:
    """Counts the events of a window in the state."""
    _count_events(*_arrays(state), window.user, window.item)


def save_for_undo(window: Window, state: State) -> Callable[[], None]:
    """Saves what counting a window of one event will change, and returns the function that restores it."""
    user = int(window.user[0])
    last = int(state[LAST][user, 0])
    changed = [(LAST, user), *([(ITEMS, last), (COUNT, last)] if last != NONE else [])]
    saved = [(state[name][row : row + 1], state[name][row : row + 1].clone()) for name, row in changed]

    def restore() -> None:
        for current, before in saved:
            current.copy_(before)

    return restore


def _arrays(state: State) -> tuple[Array, Array, Array]:
    return state[ITEMS].numpy(), state[COUNT].numpy(), state[LAST].numpy()


def _lists(user: Array, item: Array, state: State) -> RepeatLists:
    return RepeatLists(*map(torch.from_numpy, _list_and_count(*_arrays(state), user, item)))


@compiled
def _count_events(ring: Array, count: Array, last: Array, user: Array, item: Array) -> None:
    for k in range(len(user)):
        _append(ring, count, last, user[k], item[k])


@compiled
def _append(ring: Array, count: Array, last: Array, user: int, item: int) -> None:
    before = last[user, 0]
    if before != NONE:
        entry = ring[before, count[before] % LENGTH]
        entry[ITEM], entry[USER], entry[BEFORE] = item, user, last[user, 1]
        count[before] += 1
    last[user, 1], last[user, 0] = before, item


@compiled
def _list_and_count(ring: Array, count: Array, last: Array, user: Array, item: Array) -> tuple[Array, Array, Array]:
    """(start, item, bucket) of RepeatLists; counts the events too, unless `item` is empty."""
    start = np.zeros(len(user) + 1, np.int64)
    items, bucket, size = np.empty(1024, np.int32), np.empty(1024, np.int32), 0
    place = np.full(len(ring), NONE, np.int64)  # of an item in the list
    times, age, kind = np.zeros(LENGTH, np.int64), np.zeros(LENGTH, np.int64), np.zeros(LENGTH, np.int64)
    for k in range(len(user)):
        before, second, first = last[user[k], 0], last[user[k], 1], size
        if before != NONE:
            while size + LENGTH > len(items):
                items = np.concatenate((items, np.empty_like(items)))
                bucket = np.concatenate((bucket, np.empty_like(bucket)))
            length = min(count[before], LENGTH)
            for j in range(length):
                entry = (count[before] - 1 - j) % LENGTH
                following = ring[before, entry, ITEM]
                if place[following] == NONE:
                    place[following], items[size] = size - first, following
                    times[size - first], age[size - first], kind[size - first] = 0, j, 0
                    size += 1
                at = place[following]
                times[at] += 1
                after_both = second != NONE and ring[before, entry, BEFORE] == second
                kind[at] |= (ring[before, entry, USER] == user[k]) | (2 * after_both)
            for j in range(first, size):
                bucket[j] = _bucket(kind[j - first], age[j - first], times[j - first], length)
                place[items[j]] = NONE
        start[k + 1] = size
        if len(item):
            _append(ring, count, last, user[k], item[k])
    return start, items[:size], bucket[:size]


@compiled
def add_bonus(
    ring: Array, count: Array, last: Array, user: int, values: Array, gate: np.float32, scores: Array
) -> None:
    """scores[I] += the value of each listed item's bucket, times 1 + gate, for one user now."""
    before, second = last[user, 0], last[user, 1]
    if before == NONE:
        return
    length = min(count[before], LENGTH)
    done = np.zeros(LENGTH, np.bool_)
    for j in range(length):
        if done[j]:
            continue
        following, times, kind = ring[before, (count[before] - 1 - j) % LENGTH, ITEM], 0, 0
        for other in range(j, length):
            entry = ring[before, (count[before] - 1 - other) % LENGTH]
            if entry[ITEM] == following:
                done[other] = True
                times += 1
                kind |= (entry[USER] == user) | (2 * (second != NONE and entry[BEFORE] == second))
        scores[following] += values[_bucket(kind, j, times, length)] * (np.float32(1) + gate)


@compiled
def _bucket(kind: int, age: int, times: int, length: int) -> int:
    octave, fullness = min(OCTAVE[age + 1], AGES - 1), min(OCTAVE[length], LENGTHS - 1)
    often = min(OCTAVE[2 * times - 1], COUNTS - 1)
    return ((kind * AGES + octave) * COUNTS + often) * LENGTHS + fullness
