"""Appending to the event index in threads against `event_index.append`: the same bits, also in unused memory."""

import numpy as np
import pytest
import torch
from models.count_memory.reference_counts import make_memory
from models.count_memory.test_event_index import ITEMS, USERS, assert_equal, assert_lists, columns, left_blocks
from models.every_model import make_log

from dynedge.data.windows import Window
from dynedge.models.count_memory import append_in_threads as in_threads
from dynedge.models.count_memory import model as memory
from dynedge.models.count_memory.append_in_threads import MOVE_BEFORE, SAVED, SIZE, TAKEN_BY, append_in_threads
from dynedge.models.count_memory.event_index import NONE, POOL_CAPACITY, append, empty
from dynedge.ops import thread_pool


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("users", "items"), [(2, 50), (30, 4), (300, 300)])
def test_any_number_of_threads_writes_the_index_of_one_event_after_the_other(users, items, threads, monkeypatch):
    """Windows of all sizes; among the moves all kinds of reused memory."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(thread_pool, "MIN_ROWS", 2)
    user, item, time = columns(12_000, users=users, items=items)
    one, many, rng, kinds = empty(users, items, 0), empty(users, items, 0), np.random.default_rng(1), set()
    place_all = in_threads._place_all

    def placed(index, events):
        moves, sizes = place_all(index, events)
        kinds.update(
            (
                move[SIZE] > 0,
                move[SAVED] != NONE,
                move[TAKEN_BY] != NONE,
                move[SIZE] > 0 and move[MOVE_BEFORE] != NONE,
            )
            for of_pool in moves
            for move in of_pool
        )
        return moves, sizes

    monkeypatch.setattr(in_threads, "_place_all", placed)
    done = 0
    while done < len(user):
        some = slice(done, done + int(rng.integers(1, 4000)))
        places = append(one, items, user[some], item[some], time[some])
        assert np.array_equal(places, append_in_threads(many, items, user[some], item[some], time[some]))
        assert_equal(one, many)
        done = some.stop
    assert_lists(many, user, item, time)
    assert len(many["history"]) > POOL_CAPACITY
    assert any(left_blocks(many, pool, name) for pool, name in enumerate(("history", "occurrences")))
    assert {(False, False, False, False), (True, True, False, False), (True, False, True, False)} <= kinds


def test_an_empty_window():
    state = empty(USERS, ITEMS, 0)
    before = state.clone()
    assert (
        len(append_in_threads(state, ITEMS, *(np.empty(0, kind) for kind in (np.int32, np.int32, np.float64)))) == 0
    )
    assert_equal(state, before)


def test_large_windows_are_appended_in_threads(monkeypatch):
    """The state of a model after a window is the same with and without them."""
    log, states = make_log(events=600), []
    for large, threads in ((1000, 4), (100, 4), (100, 3)):
        monkeypatch.setattr(memory, "LARGE_WINDOW", large)
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        model, used = make_memory(log), []
        monkeypatch.setattr(
            memory, "append_in_threads", lambda *parts, used=used: used.append(1) or append_in_threads(*parts)
        )
        state = model.start()
        for start in (0, 50, 400):
            model.observe(Window(log, range(start, {0: 50, 50: 400, 400: 600}[start])), state)
        states.append(state)
        assert len(used) == (2 if large == 100 and threads == 4 else 0)
    for state in states[1:]:
        assert_equal(state, states[0])
