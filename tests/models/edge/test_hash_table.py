"""The hash table of counts: growing, finding and pruning."""

import numpy as np

from dynedge.models.base import State
from dynedge.models.count_memory import hash_table
from dynedge.models.count_memory.hash_table import COUNT, HEAD, ITEM, NEXT, add_count, find_entry, find_row, view_of


def test_all_counts_are_found_after_growing():
    state, rng = State(hash_table.empty("t")), np.random.default_rng(0)
    context_decay, log_decay = hash_table.decay_factors(2.0), hash_table.decay_factors(1000.0)
    expected: dict[tuple[int, int], float] = {}
    for event in range(6000):
        if event % 500 == 0:
            hash_table.reserve(state, "t", 500)
        key, item = int(rng.integers(0, 1500)) << 33, int(rng.integers(0, 4))
        add_count(view_of(state, "t"), key, item, 1.0, event, 0.0, context_decay, log_decay, 0)
        expected[key, item] = expected.get((key, item), 0) + 1
    table = view_of(state, "t")
    assert len(table.entries) > hash_table.INITIAL_CAPACITY
    assert len(table.rows) > hash_table.INITIAL_CAPACITY
    for (key, item), count in expected.items():
        entry = find_entry(table, find_row(table, key), item)
        assert table.entry_counts[entry, COUNT] == count
    assert find_row(table, 1) == -1
    assert find_entry(table, 0, 77) == -1


def test_a_full_list_is_pruned_to_its_most_important_half_and_no_count_is_lost():
    state = State(hash_table.empty("t"))
    context_decay, log_decay = hash_table.decay_factors(2.0), hash_table.decay_factors(1000.0)
    items = [0] * 5 + [1] * 4 + list(range(2, 9))  # nine items
    for event, item in enumerate(items):
        add_count(view_of(state, "t"), 7, item, 1.0, event, 0.0, context_decay, log_decay, 8)

    def listed():
        table, items = view_of(state, "t"), []
        entry = table.rows[0, HEAD]
        while entry != -1:
            items.append(int(table.entries[entry, ITEM]))
            entry = table.entries[entry, NEXT]
        return items

    assert sorted(listed()) == [0, 1, 6, 7, 8]  # the eighth item pruned it to four, with the two most frequent
    add_count(view_of(state, "t"), 7, 3, 1.0, len(items), 0.0, context_decay, log_decay, 8)
    table = view_of(state, "t")
    assert 3 in listed()
    assert table.entry_counts[find_entry(table, 0, 3), COUNT] == 2
    assert table.used.tolist() == [1, 9]
