"""The hash table of counts: growing, finding and undoing."""

import numpy as np
import torch
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.models.base import State
from dynedge.models.edge import hash_table, repeat_bonus
from dynedge.models.edge.hash_table import (
    COUNT,
    ENTRY_CLOCK,
    HEAD,
    ITEM,
    NEXT,
    add_count,
    find_entry,
    find_row,
    view_of,
)
from dynedge.models.edge.undo import restore_rows, save_rows


def test_all_counts_are_found_after_growing():
    state, rng = State(hash_table.empty("t")), np.random.default_rng(0)
    expected: dict[tuple[int, int], float] = {}
    for event in range(6000):
        if event % 500 == 0:
            hash_table.reserve(state, "t", 500)
        key, item = int(rng.integers(0, 1500)) << 33, int(rng.integers(0, 4))
        add_count(view_of(state, "t"), key, item, float(event))
        expected[key, item] = expected.get((key, item), 0) + 1
    table = view_of(state, "t")
    assert len(table.entries) > hash_table.INITIAL_CAPACITY
    assert len(table.rows) > hash_table.INITIAL_CAPACITY
    for (key, item), count in expected.items():
        entry = find_entry(table, find_row(table, key), item)
        assert table.entries[entry, COUNT] == count
    assert find_row(table, 1) == -1
    assert find_entry(table, 0, 77) == -1


def test_a_row_lists_its_items_newest_first_with_their_counts():
    state = State(hash_table.empty("t"))
    for event, item in enumerate([4, 2, 4, 9, 2, 4]):
        add_count(view_of(state, "t"), 7, item, float(event))
    table, listed = view_of(state, "t"), []
    entry = table.rows[0, HEAD]
    while entry != -1:
        record = table.entries[entry]
        listed.append((int(record[ITEM]), int(record[COUNT]), int(record[ENTRY_CLOCK]), table.entry_times[entry]))
        entry = record[NEXT]
    assert listed == [(9, 1, 4, 3.0), (2, 2, 5, 4.0), (4, 3, 6, 5.0)]
    assert table.rows[0].tolist() == [2, 3, 6]
    assert table.used.tolist() == [1, 3]


def test_undo_restores_every_tensor():
    """Also where the count is the first of its row."""
    state, rng = State(hash_table.empty("t")), np.random.default_rng(0)
    table = view_of(state, "t")
    for event in range(800):
        key, item = int(rng.integers(0, 30)) << 33, int(rng.integers(0, 12))
        counted = table, key, item, float(event)
        before = state.clone()
        saved = save_rows(table, np.array([key]), np.array([item]))
        add_count(*counted)
        after = state.clone()
        assert not torch.equal(after["t.rows"], before["t.rows"])
        restore_rows(table, saved)
        assert all(torch.equal(state[name], tensor) for name, tensor in before.items()), event
        add_count(*counted)
        assert all(torch.equal(state[name], tensor) for name, tensor in after.items()), event


def test_undo_of_repeat_lists_also_where_the_table_grows():
    log = make_log(events=2600, users=60, items=3000)
    state = repeat_bonus.empty_lists()
    capacity, grown = len(state["user_items.entries"]), 0
    for k in range(len(log)):
        window, before = Window(log, range(k, k + 1)), state.clone()
        undo = repeat_bonus.save_for_undo(window, state)
        reserved = state.clone()
        grown += len(reserved["user_items.entries"]) > len(before["user_items.entries"])
        repeat_bonus.count_events(window, state)
        undo()
        assert all(torch.equal(state[name], tensor) for name, tensor in reserved.items()), k
        repeat_bonus.lists_before_events(window, state)
    assert grown
    assert len(state["user_items.entries"]) > capacity
    plain = repeat_bonus.empty_lists()
    repeat_bonus.count_events(Window(log, range(len(log))), plain)
    users, times = torch.arange(log.num_users), torch.full((log.num_users,), 1e4, dtype=torch.float64)
    lists = [repeat_bonus.lists_now(users, times, one) for one in (state, plain)]
    assert all(torch.equal(one, other) for one, other in zip(*lists, strict=True))
