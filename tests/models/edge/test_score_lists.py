"""Score lists: drawn entries and their weights, candidates found in lists; lists do not depend on the windows."""

import itertools
import math

import numpy as np
import pytest
import torch

from dynedge.data.log import EventLog
from dynedge.data.windows import Window
from dynedge.models.edge import repeat_bonus, successors
from dynedge.models.edge.score_lists import FIRST_SUCCESSOR, NONE, ListSources, ScoreLists


def make_log(events=400, users=5, items=60, seed=0):
    rng = np.random.default_rng(seed)
    item = rng.zipf(1.2, events) % items
    return EventLog.from_arrays(
        rng.integers(0, users, events), item, np.arange(events) * 7.0, num_users=users, num_items=items
    )


SOURCES = [ListSources(True, True), ListSources(True, False), ListSources(False, True)]


@pytest.mark.parametrize("sources", SOURCES)
def test_lists_do_not_depend_on_how_the_log_is_cut(sources):
    log = make_log()

    def entries(size):
        state, found = sources.start(5, 60), []
        for first in range(0, 400, size):
            window = Window(log, range(first, min(first + size, 400)))
            lists = sources.before_events(window, state)
            found += list(
                zip((lists.event + first).tolist(), lists.item.tolist(), *lists.bucket.T.tolist(), strict=True)
            )
        return found, state

    whole, whole_state = entries(400)
    parts, state = entries(33)
    assert whole == parts
    assert all(
        torch.equal(whole_state[name], state[name]) for name in (successors.LAST, successors.COUNT) if name in state
    )
    assert len({entry[:2] for entry in whole}) == len(whole), "an item is listed once per event"
    assert all(min(entry[2:]) < NONE for entry in whole)


def test_lists_are_the_users_items_and_those_that_followed_the_last_one():
    """Against plain loops: which items both sources list, and in which order of occurrence and how often."""
    log, sources = make_log(), SOURCES[0]
    lists = sources.before_events(Window(log, range(400)), sources.start(5, 60))
    seen, last, followers = {}, {}, {}
    for k, (user, item) in enumerate(zip(log.user.tolist(), log.item.tolist(), strict=True)):
        entries = slice(int(lists.start[k]), int(lists.start[k + 1]))
        listed = dict(zip(lists.item[entries].tolist(), lists.bucket[entries].tolist(), strict=True))
        recent = followers.get(last.get(user), [])[-successors.LENGTH :][::-1]
        assert {i for i, (repeat, _) in listed.items() if repeat != NONE} == set(seen.get(user, ()))
        assert {i for i, (_, follower) in listed.items() if follower != NONE} == set(recent)
        for i, (repeat, follower) in listed.items():
            if repeat != NONE:
                count = repeat // repeat_bonus.TIME_AGES % repeat_bonus.COUNTS + 1
                assert count == min(seen[user].count(i), repeat_bonus.COUNTS)
            if follower != NONE:
                octave = (follower - FIRST_SUCCESSOR) // (successors.COUNTS * successors.LENGTHS) % successors.AGES
                assert octave == int(np.log2(recent.index(i) + 1))
        if user in last:
            followers.setdefault(last[user], []).append(item)
        seen.setdefault(user, []).append(item)
        last[user] = item


def test_buckets_are_logarithmic():
    """Against the formulas, of which the kernels read tables."""
    seconds = [0.0, 0.5, 8.9, 9.0, 99.5, 12345.0, 999_998.0, 999_999.0, 1e9]
    for age, count, time in itertools.product([0, 1, 2, 9, 79, 159, 160, 161, 5000], [1, 3, 4, 9], seconds):
        ages = min(int(1.5 * math.log2(age + 1)), 11), min(1 + int(math.log10(1 + time)), 7) if time else 0
        assert repeat_bonus._bucket(age, count, time) == (ages[0] * 4 + min(count, 4) - 1) * 8 + ages[1]
    cases = itertools.product(range(4), [0, 1, 6, 7, 127], [1, 2, 3, 16, 17, 128], [1, 7, 128])
    for kind, age, times, length in cases:
        octave, fullness = min(int(math.log2(age + 1)), 7), min(int(math.log2(length)), 7)
        often = min(math.ceil(math.log2(times)), 5)
        assert successors._bucket(kind, age, times, length) == ((kind * 8 + octave) * 6 + often) * 8 + fullness


@pytest.mark.parametrize("sources", SOURCES)
def test_lists_now_are_those_of_the_next_event(sources):
    log, state = make_log(), sources.start(5, 60)
    sources.count_events(Window(log, range(300)), state)
    now = sources.now(torch.tensor([int(log.user[300])]), torch.tensor([float(log.time[300])]), state)
    before = sources.before_events(Window(log, range(300, 301)), state)
    assert all(torch.equal(one, other) for one, other in zip(now, before, strict=True))


def test_an_event_can_be_undone():
    log, sources = make_log(), SOURCES[0]
    state = sources.start(5, 60)
    sources.count_events(Window(log, range(300)), state)
    users, times = torch.arange(5), torch.full((5,), 1e6, dtype=torch.float64)
    before = sources.now(users, times, state)
    undo = sources.save_for_undo(Window(log, range(300, 301)), state)
    sources.count_events(Window(log, range(300, 301)), state)
    assert not torch.equal(sources.now(users, times, state).bucket, before.bucket)
    undo()
    assert all(torch.equal(one, other) for one, other in zip(sources.now(users, times, state), before, strict=True))


def test_long_lists_are_thinned_to_entries_of_the_same_total_weight():
    log, sources = make_log(), SOURCES[0]
    window = Window(log, range(400))
    lists = sources.before_events(window, sources.start(5, 60))
    thin, log_weight = lists.thinned(window, 7)
    for k in range(400):
        all_items = lists.item[lists.start[k] : lists.start[k + 1]].tolist()
        entries = slice(int(thin.start[k]), int(thin.start[k + 1]))
        items, weights = thin.item[entries].tolist(), log_weight[entries].exp()
        assert set(items) <= set(all_items)
        assert len(set(items)) == len(items)
        assert len(items) <= 8
        true = int(log.item[k])
        assert (true in items) == (true in all_items)
        if len(all_items) > 7:
            assert float(weights[:7].sum()) == pytest.approx(len(all_items), rel=1e-5)
        else:
            assert items == all_items


def test_candidates_are_found_in_the_lists():
    start, event = torch.tensor([0, 2, 2, 3]), torch.tensor([0, 0, 2])
    lists = ScoreLists(start, event, torch.tensor([4, 1, 4]), torch.zeros(3, 2, dtype=torch.int64))
    found = lists.of_candidates(torch.tensor([[4, 0, 9], [4, 1, 0], [1, 4, 4]]))
    assert found.tolist() == [[0, 3, 3], [3, 3, 3], [3, 2, 2]]
