"""Tests of links against a brute-force search, and of the scratch arrays being restored."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.brute_force import links_by_search

from dynedge.data.statistics import degrees
from dynedge.plan.links import ACTIVE, ENTRY, Linker, active_mask, link_events

EVENTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40)
FLAGS = st.lists(st.booleans(), min_size=7, max_size=7)


@given(EVENTS, FLAGS, FLAGS)
@settings(max_examples=500, deadline=None)
def test_links_equal_a_backward_search(
    events: list[tuple[int, int]], active_user: list[bool], active_item: list[bool]
) -> None:
    user, item = np.array(events, np.int32).reshape(-1, 2).T
    flags = np.array(active_user), np.array(active_item)
    prev = Linker(*flags)(user, item)
    assert prev.dtype == np.int32
    assert np.array_equal(prev, links_by_search(user, item, *flags))


def test_scratch_arrays_are_restored() -> None:
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 9, (2, 100)).astype(np.int32)
    flags = rng.random((2, 9)) < 0.3
    scratch = np.full(9, ENTRY, np.int32), np.full(9, ENTRY, np.int32)
    first = link_events(user, item, *flags, *scratch)
    assert all((last == ENTRY).all() for last in scratch)
    assert np.array_equal(first, link_events(user, item, *flags, *scratch))


def test_a_linker_is_thread_safe() -> None:
    rng = np.random.default_rng(1)
    windows = rng.integers(0, 50, (200, 2, 3000)).astype(np.int32)
    linker = Linker(rng.random(50) < 0.1, rng.random(50) < 0.1)
    with ThreadPoolExecutor(8) as pool:
        parallel = list(pool.map(lambda window: linker(*window), windows))
    assert all(np.array_equal(prev, linker(*window)) for prev, window in zip(parallel, windows, strict=True))


def test_entities_above_the_threshold_are_active() -> None:
    counts = degrees(np.array([2, 0, 2, 2, 0], np.int32), 4)
    assert counts.tolist() == [2, 0, 3, 0]
    assert active_mask(counts, 2).tolist() == [False, False, True, False]
    assert active_mask(counts, 0).tolist() == [True, False, True, False]
    assert not active_mask(counts, None).any()


@pytest.mark.parametrize(
    ("user", "item", "expected"),
    [
        ([], [], []),
        ([0], [0], [[ENTRY, ENTRY]]),
        ([0, 0, 0], [0, 1, 0], [[ENTRY, ENTRY], [0, ENTRY], [1, 0]]),
        ([1, 1], [0, 0], [[ACTIVE, ENTRY], [ACTIVE, 0]]),
        ([1, 1], [2, 2], [[ACTIVE, ACTIVE], [ACTIVE, ACTIVE]]),
    ],
)
def test_links_of_small_windows(user: list[int], item: list[int], expected: list[list[int]]) -> None:
    linker = Linker(np.array([False, True]), np.array([False, False, True, False]))  # item 3 has no events
    prev = linker(np.array(user, np.int32), np.array(item, np.int32))
    assert prev.tolist() == expected
