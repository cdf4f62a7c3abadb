"""The event index against plain lists: appending, growing, searching, undoing, popularity."""

import bisect
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynedge.errors import DataError
from dynedge.models.count_memory import event_index
from dynedge.models.count_memory.event_index import (
    CAPACITY,
    LENGTH,
    NEVER,
    NONE,
    POOL_CAPACITY,
    START,
    append,
    empty,
    first_from,
    mark_seen_items,
    popularity_of,
    save_for_undo,
    view_of,
)
from dynedge.models.count_memory.popularity import RESCALE_ABOVE, count_popularity

USERS, ITEMS = 30, 50
HALF_LIVES = np.array([1e12, 20.0, 0.7])
GROWTH = 2.0 ** (1 / HALF_LIVES)


def columns(events, seed=0, users=USERS, items=ITEMS):
    """(user, item, time): some users and items have most of the events, some of each have none."""
    rng = np.random.default_rng(seed)
    user, item = (rng.zipf(1.4, events) % size for size in (users - 1, items - 1))
    return user.astype(np.int32), item.astype(np.int32), np.cumsum(rng.integers(0, 3, events)).astype(np.float64)


def count(state, item, items=ITEMS):
    count_popularity(popularity_of(view_of(state, items)), GROWTH, item)


def assert_equal(state, other):
    assert state.keys() == other.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, other[name]), name


def left_blocks(state, pool, name):
    """[(start, stop)] of all blocks of a pool that were left."""
    found = []
    for size, first in enumerate(state["left"][pool].tolist()):
        start = first
        while start != NONE:
            found.append((start, start + 2**size))
            low, high = state[name][start, :2].tolist()
            start = (high << 32) | (low & 0xFFFFFFFF)
    return found


def assert_lists(state, user, item, time):
    """The blocks of all users and items hold the events, in order."""
    histories, occurrences = defaultdict(list), defaultdict(list)
    for k, (u, i, t) in enumerate(zip(user.tolist(), item.tolist(), time.tolist(), strict=True)):
        before = histories[u][-1] if histories[u] else None
        if before is not None:
            gap = int(64 * np.log2(1 + t - before[3]))
            occurrences[before[0]][before[2]][5:] = [i, k, gap]
        preceding = [NONE, NONE] if before is None else [before[0], gap]
        occurrences[i].append([u, len(histories[u]), k, *preceding, NONE, NEVER, NONE])
        histories[u].append((i, k, len(occurrences[i]) - 1, t))
    assert int(state["clock"]) == len(user)
    for u, (start, length, capacity) in enumerate(state["user_blocks"].tolist()):
        rows, times = state["history"][start : start + length].tolist(), state["history_time"][start : start + length]
        assert [(*row, t) for row, t in zip(rows, times.tolist(), strict=True)] == histories[u]
        assert length <= capacity
    for i, (start, length, capacity) in enumerate(state["item_blocks"].tolist()):
        assert state["occurrences"][start : start + length].tolist() == occurrences[i]
        assert length <= capacity
    for pool, (blocks, names) in enumerate(event_index.BLOCKS):
        taken = [(start, start + capacity) for start, _, capacity in state[blocks].tolist() if capacity]
        taken = sorted(taken + left_blocks(state, pool, names[0]))
        used = int(state["used"][pool])
        assert taken[0][0] == 0
        assert all(stop == start for (_, stop), (start, _) in pairwise(taken)), "no gap and no overlap"
        assert taken[-1][1] == used
        for name in names:
            assert len(state[name]) >= used
            assert not state[name][used:].any(), "unused memory is zero"


def test_events_are_in_the_lists_of_their_user_and_item_however_they_are_grouped():
    user, item, time = columns(1500)
    states = []
    for size in (1, 7, 333, len(user)):
        state, places = empty(USERS, ITEMS, len(HALF_LIVES)), []
        for start in range(0, len(user), size):
            some = slice(start, start + size)
            places.append(append(state, ITEMS, user[some], item[some], time[some]))
            count(state, item[some])
        states.append(state)
        seen = defaultdict(int)
        for u, place in zip(user.tolist(), np.concatenate(places).tolist(), strict=True):
            assert place == seen[u]
            seen[u] += 1
    assert_lists(states[0], user, item, time)
    assert all(len(states[0][name]) > POOL_CAPACITY for name in ("history", "history_time", "occurrences"))
    for state in states[1:]:
        assert_equal(state, states[0])


def test_a_full_block_moves_to_the_end_of_its_pool_and_doubles():
    """One user with all events of an item, then two users in turn."""
    for users in (1, 2):
        state, seen = empty(users, 1, 0), []
        for k in range(5000):
            append(state, 1, np.array([k % users]), np.array([0]), np.array([float(k)]))
            seen.append((int(state["item_blocks"][0, START]), int(state["item_blocks"][0, CAPACITY])))
        assert_lists(state, np.arange(5000) % users, np.zeros(5000, int), np.arange(5000.0))
        starts, capacities = zip(*dict.fromkeys(seen), strict=True)
        assert capacities == tuple(2**n for n in range(1, 14))
        assert starts == tuple(2**n - 2 for n in range(1, 14))


def test_blocks_that_were_left_are_used_again():
    """Users come one after the other: each takes the blocks that those before have left."""
    state, events = empty(200, 1, 0), 9
    for k in range(200 * events):
        append(state, 1, np.array([k // events]), np.array([0]), np.array([float(k)]))
    largest = 200 * 16
    assert largest <= int(state["used"][0]) <= largest + 2 + 4 + 8


def test_the_lists_after_each_event():
    user, item, time = columns(120, seed=3, users=6, items=7)
    state = empty(6, 7, 0)
    for k in range(len(user)):
        append(state, 7, user[k : k + 1], item[k : k + 1], time[k : k + 1])
        assert_lists(state, user[: k + 1], item[: k + 1], time[: k + 1])


def test_new_users_and_items():
    """An index that grows now and then holds what one has that was large enough from the start."""
    user, item, time = columns(1500)
    order = np.argsort(np.maximum(user, item), kind="stable")  # larger ids come later
    user, item = user[order], item[order]
    growing, large = empty(1, 1, len(HALF_LIVES)), empty(USERS, ITEMS, len(HALF_LIVES))
    grown = 0
    for start in range(0, len(user), 10):
        some = slice(start, start + 10)
        users, items = (1 + int(ids[: start + 10].max()) for ids in (user, item))
        before = len(growing["user_blocks"]), len(growing["item_blocks"])
        event_index.grow(growing, users, items)
        grown += (users, items) != before
        assert len(growing["popularity"]) == items
        for state, size in ((growing, items), (large, ITEMS)):
            append(state, size, user[some], item[some], time[some])
            count(state, item[some], size)
    assert grown > 10
    event_index.grow(growing, USERS, ITEMS)
    assert_lists(growing, user, item, time)
    assert_equal(growing, large)


def test_no_more_events_than_the_clock_can_number():
    state = empty(1, 1, 1)
    state["clock"][:] = np.iinfo(np.int32).max - 1
    with pytest.raises(DataError, match="2,147,483,647 events"):
        append(state, 1, np.zeros(2, np.int32), np.zeros(2, np.int32), np.zeros(2))
    assert state["user_blocks"][0, LENGTH] == 0


@given(st.lists(st.integers(0, 30), unique=True), st.integers(-1, 32), st.integers(0, 5), st.integers(0, 1))
def test_first_from_is_a_binary_search(clocks, clock, start, column):
    """Entries outside of the range are not read."""
    clocks = sorted(clocks)
    records = np.full((start + len(clocks) + 3, 2), 77, np.int32)
    records[start : start + len(clocks), column] = clocks
    found = first_from(records, column, start, start + len(clocks), clock)
    assert found == start + bisect.bisect_left(clocks, clock)


def test_undo_restores_every_tensor():
    """After every event of a log; among them new users and items, moved blocks and rescaled popularity."""
    user, item, time = columns(600)
    state, reached = empty(USERS, ITEMS, len(HALF_LIVES)), defaultdict(int)
    for k in range(len(user)):
        u, i, some = int(user[k]), int(item[k]), slice(k, k + 1)
        undo = save_for_undo(state, u, i, GROWTH)
        before = state.clone()  # with the memory that is reserved for the event
        append(state, ITEMS, user[some], item[some], time[some])
        count(state, item[some])
        state["latest_items"][:] = torch.roll(state["latest_items"], -1)
        state["latest_items"][-1] = i
        applied = state.clone()
        reached["new user"] += int(before["user_blocks"][u, CAPACITY]) == 0
        reached["new item"] += int(before["item_blocks"][i, CAPACITY]) == 0
        rows = ("user_blocks", u), ("item_blocks", i)
        moved = [int(applied[name][row, START] != before[name][row, START]) for name, row in rows]
        reached["user block moved"] += moved[0]
        reached["item block moved"] += moved[1]
        reached["both stay"] += not any(moved)
        is_repeat = bool((user[:k] == u).any()) and item[:k][user[:k] == u][-1] == i
        reached["the user's last item again"] += is_repeat and not moved[1]
        reached["the same, and its block moved"] += is_repeat and moved[1]
        reached["rescaled"] += bool((applied["event_weight"] < before["event_weight"]).any())
        assert not torch.equal(applied["user_blocks"], before["user_blocks"])
        undo()
        assert_equal(state, before)
        append(state, ITEMS, user[some], item[some], time[some])
        count(state, item[some])
        state["latest_items"][:] = applied["latest_items"]
        assert_equal(state, applied)
    assert all(reached.values()), reached
    assert_lists(state, user, item, time)


@pytest.mark.parametrize("half_life", [1000.0, 20.0, 1.0, 0.7, 0.3])
def test_undo_right_before_popularity_is_rescaled(half_life):
    """At every weight that an event can have when the next one rescales all counts."""
    growth = np.array([2.0 ** (1 / half_life)])
    for share in (0.999, 0.5, 0.26, 0.25, 0.1):
        state = empty(3, 4, 1)
        state["popularity"][:, 0] = torch.tensor([1e12, 3e9, 7.0, 0.1])
        state["event_weight"][:], state["popularity_total"][:] = share * RESCALE_ABOVE, 2e12
        undo, before = save_for_undo(state, 1, 2, growth), state.clone()
        count_popularity(popularity_of(view_of(state, 4)), growth, np.array([2]))
        assert not torch.equal(state["popularity"], before["popularity"])
        append(state, 4, np.array([1]), np.array([2]), np.array([5.0]))
        undo()
        assert_equal(state, before)


def test_reserving_for_undo_changes_no_later_event():
    user, item, time = columns(1500)
    state, plain = empty(USERS, ITEMS, len(HALF_LIVES)), empty(USERS, ITEMS, len(HALF_LIVES))
    for k in range(len(user)):
        some = slice(k, k + 1)
        save_for_undo(state, int(user[k]), int(item[k]), GROWTH)
        append(state, ITEMS, user[some], item[some], time[some])
    append(plain, ITEMS, user, item, time)
    for name, tensor in plain.items():
        assert torch.equal(state[name][: len(tensor)], tensor), name
        assert not state[name][len(tensor) :].any(), name


def test_seen_items_are_those_of_the_history():
    user, item, time = columns(300)
    state = empty(USERS, ITEMS, 1)
    append(state, ITEMS, user, item, time)
    asked = np.array([USERS - 1, 3, 0, 3])
    out = np.zeros((len(asked), ITEMS), bool)
    mark_seen_items(view_of(state, ITEMS), asked, out)
    for row, u in zip(out, asked, strict=True):
        assert set(np.flatnonzero(row)) == set(item[user == u])


def test_popularity_decays_by_its_half_lives():
    """Counts are rescaled when the weight of an event becomes large; no share changes by that."""
    _, item, _ = columns(700)
    state, rescaled, weight = empty(1, ITEMS, len(HALF_LIVES)), np.zeros(len(HALF_LIVES), int), np.ones(3)
    for k in range(len(item)):
        count(state, item[k : k + 1])
        rescaled += state["event_weight"].numpy() < weight
        weight = state["event_weight"].numpy().copy()
    assert rescaled[0] == 0
    assert rescaled[2] > 5
    at_once = empty(1, ITEMS, len(HALF_LIVES))
    count(at_once, item)
    assert_equal(state, at_once)
    ages = len(item) - 1 - np.arange(len(item))
    for h, half_life in enumerate(HALF_LIVES):
        weights = np.bincount(item, 2.0 ** (-ages / half_life), ITEMS)
        shares = state["popularity"][:, h].double().numpy() / float(state["popularity_total"][h])
        np.testing.assert_allclose(shares, weights / weights.sum(), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("half_life", [0.3, 2.0, 11.0])
def test_many_rescalings_in_one_call_equal_one_event_at_a_time(half_life):
    """With and without listing the items whose count is not 0; items come, fade to 0 and come back."""
    rng, items, growth = np.random.default_rng(7), 300, 2.0 ** (1 / np.array([half_life, 1e9]))
    item = np.concatenate([rng.integers(first, first + 60, 900) for first in (0, 120, 240, 30)])
    at_once, one_by_one = empty(1, items, 2), empty(1, items, 2)
    listing = popularity_of(view_of(at_once, items))._replace(listed=np.empty((2, items), np.int32))
    for part in np.split(item, [1000, 1001, 3000]):
        count_popularity(listing, growth, part)
    assert listing.num_listed[1] == NONE and 0 < listing.num_listed[0] < items
    for k in range(len(item)):
        count_popularity(popularity_of(view_of(one_by_one, items)), growth, item[k : k + 1])
    np.testing.assert_allclose(at_once["popularity"][:, 1], np.bincount(item, minlength=items), rtol=1e-5)
    for name in ("popularity", "popularity_total", "event_weight"):
        assert torch.equal(at_once[name], one_by_one[name])
    of_last, of_first = at_once["popularity"][item[-1], 0], at_once["popularity"][100:120, 0]
    assert of_last > 0 and not of_first.any()
