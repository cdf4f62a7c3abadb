"""States that live: any split of the events ends in the same bits, and who is new starts as nobody known."""

import numpy as np
import pytest
import torch
from serving.small_run import MODELS_SERVED, bits, make_events, make_run, open_live
from training.toy_model import Toy, ToyConfig

from dynedge.data.log import read_log
from dynedge.data.windows import Window
from dynedge.errors import UsageError
from dynedge.inference.event_input import Event
from dynedge.inference.late_events import Clock
from dynedge.models.growable import grown


@pytest.fixture(params=MODELS_SERVED, scope="module")
def folder(request, runs_folder):
    return make_run(runs_folder, request.param)


def split(events, rng):
    """Into pieces of 1 to 100, more of them short."""
    at = 0
    while at < len(events):
        size = int(rng.integers(1, 101)) if rng.random() < 0.3 else 1
        yield events[at : at + size]
        at += size


def test_any_split_ends_in_the_bits_of_one_call(folder, runs_folder):
    events = make_events(runs_folder, 300)
    whole = open_live(folder)
    late = whole.observe(events).label
    assert len(whole.users.added) > 10
    assert len(whole.items.added) > 10
    assert 0 < late.sum() < 100
    for seed in range(4):
        parts, found = open_live(folder), []
        for piece in split(events, np.random.default_rng(seed)):
            found.append(parts.observe(piece).label)
            parts.recommend(np.array([0]), 3)  # which changes nothing
        assert np.array_equal(np.concatenate(found), late)
        assert bits(parts) == bits(whole)
        asked = np.arange(len(whole.users))
        for mine, other in zip(parts.recommend(asked, 10), whole.recommend(asked, 10), strict=True):
            assert np.array_equal(mine, other)


def test_one_event_is_prepared_as_any_window(runs_folder):
    live = open_live(make_run(runs_folder, "edge"))
    model, log = live.model.recurrence, read_log(runs_folder / "log")
    for k in (0, 1, 2999):
        window = Window(log, range(k, k + 1))
        quick, plain = vars(model.prepare(window)), vars(model._prepare(window))
        assert quick.keys() == plain.keys()
        for name in quick.keys() - {"window", "schedule", "last"}:
            assert same(quick[name], plain[name]), name
        for mine, other in zip(quick["last"], plain["last"], strict=True):
            assert same(tuple(vars(mine).values()), tuple(vars(other).values()))


def same(one, other):
    if isinstance(one, tuple):
        return all(map(same, one, other))
    return one.dtype == other.dtype and torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_known_people_alone_are_walked_as_the_log_is(folder, runs_folder):
    log = read_log(runs_folder / "log")
    streamed, walked = open_live(folder), open_live(folder)
    events = [
        Event(str(log.user_ids[u]), str(log.item_ids[i]), t)
        for u, i, t in zip(log.user[2400:].tolist(), log.item[2400:].tolist(), log.time[2400:].tolist(), strict=True)
    ]
    streamed.observe(events)
    walked.walk_to(log)
    assert {**bits(streamed), "clock user": 0, "clock item": 0} == {**bits(walked), "clock user": 0, "clock item": 0}


def test_a_new_entity_begins_where_nobody_is_known_and_changes_no_others_state(folder):
    live, still = open_live(folder), open_live(folder)
    users, items = len(live.users), len(live.items)
    live.users.add("somebody"), live.items.add("something")
    live.grow()
    for side, count in enumerate((users, items)):
        before = still.model.states(side, torch.arange(count), still.state)
        after = live.model.states(side, torch.arange(count + 1), live.state)
        if after is not None:
            assert torch.equal(after[:count], before)
            recurrence = getattr(live.model, "recurrence", live.model)
            assert torch.equal(after[count], recurrence.xi[side])
    found, scores = live.recommend(np.array([0, users]), items + 1)
    assert found.shape == (2, items + 1)
    assert np.isfinite(scores[found >= 0]).all()
    assert (np.sort(found[1][found[1] >= 0])[-1]) <= items  # nobody beyond the one that is there
    best, others = (one.recommend(np.array([0]), 5)[0] for one in (live, still))
    assert np.array_equal(best, others)


def test_an_event_that_did_not_happen_leaves_no_bit(folder, runs_folder):
    """Of known people and new ones, met and not, again and again."""
    live, happened = open_live(folder), open_live(folder)
    events = make_events(runs_folder, 400, seed=3)
    for at in range(0, 400, 20):
        for one in (live, happened):
            one.observe(events[at : at + 19])
        event = events[at + 19]
        for one in (live, happened):  # rows for whoever is new
            one.users.add(event.user), one.items.add(event.item)
            one.grow()
        before, slots = bits(live), {name: live.state[name].clone() for name in live.state if name.endswith("_slots")}
        user = np.array([live.users.find(event.user)])
        with live.supposing(event):
            found = live.recommend(user, 5)
        assert bits(live) == before
        for name, then in slots.items():
            same = len(live.state[name]) == len(then)  # else room was made, which is no trace
            assert not same or torch.equal(live.state[name], then)
        for one in (live, happened):
            one.observe([event])
        for mine, other in zip(found, happened.recommend(user, 5), strict=True):
            assert np.array_equal(mine, other)


def test_new_items_are_recommended_once_they_are_met(runs_folder):
    live = open_live(make_run(runs_folder, "edge"))
    newest = live.coverage.last_time
    live.observe([Event("ann", item, newest + k) for k, item in enumerate(["a", "b"] * 6)])
    best, _ = live.recommend(np.array([live.users.find("ann")]), 2)
    assert {live.items[int(row)] for row in best[0]} == {"a", "b"}
    unseen, _ = live.recommend(np.array([live.users.find("ann")]), 600, filter_seen=True)
    assert not {live.items.find("a"), live.items.find("b")} & set(unseen[0].tolist())


def test_a_model_that_cannot_grow_says_so():
    model = Toy(ToyConfig(), 3, 3)
    assert not model.grows
    with pytest.raises(UsageError, match="train it again"):
        model.grow(4, 4, model.start())


def test_room_is_never_anyone_elses():
    both = torch.arange(8.0).view(4, 2)
    table = both[:2]  # as a loader may hand it out: a part of a larger memory
    more = grown(table, 3, -1.0)
    assert torch.equal(both, torch.arange(8.0).view(4, 2))
    most = grown(more, 4, torch.tensor([5.0, 6.0]))
    assert most.data_ptr() == more.data_ptr()  # there was room
    assert most.tolist() == [[0, 1], [2, 3], [-1, -1], [5, 6]]
    copy = most.clone()
    grown(copy, 5, 0.0)
    assert grown(most, 4, 9.0) is most
    assert torch.equal(grown(torch.nn.Parameter(copy), 6, 1.0)[:4], copy)


def test_late_events_count_as_of_their_entitys_last_event():
    clock = Clock(2, 2, 10.0)
    clock.grow(3, 3)
    user, item, time = [0, 2, 2, 1, 2], [0, 2, 2, 0, 1], [12.0, 3.0, 2.0, 11.0, 10.0]
    counted, late = clock.take(np.array(user), np.array(item), np.array(time))
    # The second user and item are new: 3 is early, not late. The fourth's item was met at 12.
    assert counted.tolist() == [12, 3, 3, 12, 10]
    assert late.tolist() == [False, False, True, True, False]
