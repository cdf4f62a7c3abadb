"""The positions in a WindowIndex, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.window_index import WindowIndex, index_window
from dynedge.plan.levels import NO_DNODES
from dynedge.plan.links import Linker
from dynedge.plan.schedule import build_schedule

USERS, ITEMS = 30, 40


def make_index(active: float, *, by_item: bool, events: int = 200, first: int = 50) -> WindowIndex:
    """A window in which some users and items are active."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, USERS, 300), rng.zipf(1.4, 300) % ITEMS
    log = EventLog.from_arrays(user, item, np.arange(300.0), num_users=USERS, num_items=ITEMS)
    window = Window(log, range(first, first + events))
    masks = rng.random(USERS) < active, rng.random(ITEMS) < active
    schedule = build_schedule(window.user, window.item, Linker(*masks)(window.user, window.item), NO_DNODES)
    past = Linker(np.zeros(USERS, bool), np.zeros(ITEMS, bool))(window.user, window.item)
    return index_window(window, schedule, past, torch.zeros(0), by_item=by_item)


@pytest.mark.parametrize("active", [0.0, 0.4, 1.0])
def test_items_and_where_events_find_them(active: float) -> None:
    index = make_index(active, by_item=False)
    items = np.unique(index.window.item)
    assert index.items.tolist() == items.tolist()
    assert index.item_place.tolist() == np.searchsorted(items, index.window.item).tolist()


@pytest.mark.parametrize("active", [0.0, 0.4, 1.0])
def test_last_items(active: float) -> None:
    """A user's previous item in the window, else a place of the user's own behind all items."""
    index, last, begin, expected = make_index(active, by_item=False), dict[int, int](), list[int](), list[int]()
    for user, place in zip(index.window.user.tolist(), index.item_place.tolist(), strict=True):
        if user not in last:
            begin.append(user)
        expected.append(last.get(user, len(index.items) + len(begin) - 1))
        last[user] = place
    assert index.begin.tolist() == begin
    assert index.last_place.tolist() == expected


@pytest.mark.parametrize("events", [0, 1, 200])
def test_last_events(events: int) -> None:
    """One of each user and of each item, active or not, in time order."""
    index = make_index(0.4, by_item=False, events=events)
    window = index.window
    for last, entities in zip(index.last, (window.user, window.item), strict=True):
        expected = sorted({int(entity): k for k, entity in enumerate(entities)}.values())
        assert last.entity.tolist() == entities[expected].tolist()
        assert last.time.tolist() == window.time[expected].tolist()
        assert last.item.tolist() == window.item[expected].tolist()


@pytest.mark.parametrize("by_item", [False, True])
def test_places_of_features(by_item: bool) -> None:
    index = make_index(0.4, by_item=by_item)
    side = np.repeat(np.arange(len(index.schedule.blocks) - 1) % 2, np.diff(index.schedule.blocks))
    event = index.schedule.event
    expected = 2 * (index.item_place.numpy()[event] if by_item else event) + side
    assert index.place.tolist() == expected.tolist()


def test_no_events() -> None:
    index = make_index(0.4, by_item=True, events=0)
    assert not any(len(part) for part in (index.items, index.item_place, index.begin, index.last_place, index.place))
