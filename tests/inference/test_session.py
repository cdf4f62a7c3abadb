"""Sessions: any split of the events into calls gives the same bits; new entities start from the initial state."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from serving.small_run import MODELS_SERVED, make_events, make_run, state_bits

from dynedge.data.log import read_log
from dynedge.data.windows import Window
from dynedge.errors import UsageError
from dynedge.inference.event_input import Event
from dynedge.inference.late_events import LateEventPolicy
from dynedge.inference.rules import Rules
from dynedge.inference.session import Session
from dynedge.models.capabilities import Growable, HasStates, capable
from dynedge.models.growable import grown

UNSET = {"last_event_time user": 0, "last_event_time item": 0}


@pytest.fixture(params=MODELS_SERVED, scope="module")
def folder(request, runs_folder):
    return make_run(runs_folder, request.param)


def split(events, rng):
    """Splits events into batches of 1 to 100, most of them short."""
    at = 0
    while at < len(events):
        size = int(rng.integers(1, 101)) if rng.random() < 0.3 else 1
        yield events[at : at + size]
        at += size


def test_any_split_into_calls_gives_the_bits_of_one_call(folder, runs_folder):
    events = make_events(runs_folder, 300)
    whole = Session.open(folder)
    late = whole.observe(events).label
    assert len(whole.users.added) > 10
    assert len(whole.items.added) > 10
    assert 0 < late.sum() < 100
    for seed in range(4):
        parts, labels = Session.open(folder), []
        for batch in split(events, np.random.default_rng(seed)):
            labels.append(parts.observe(batch).label)
            parts.top_items(np.array([0]), 3)  # a query changes nothing
        assert np.array_equal(np.concatenate(labels), late)
        assert state_bits(parts) == state_bits(whole)
        users = np.arange(len(whole.users))
        for mine, other in zip(parts.top_items(users, 10), whole.top_items(users, 10), strict=True):
            assert np.array_equal(mine, other)


def test_one_event_is_prepared_like_any_window(runs_folder):
    session = Session.open(make_run(runs_folder, "edge"))
    model, log = session.model.recurrence, read_log(runs_folder / "log")
    for k in (0, 1, 2999):
        window = Window(log, range(k, k + 1))
        quick, plain = vars(model.prepare(window)), vars(model._prepare(window))
        assert quick.keys() == plain.keys()
        for name in quick.keys() - {"window", "schedule"}:
            assert same(quick[name], plain[name]), name


def same(one, other):
    if isinstance(one, tuple):
        return all(map(same, one, other))
    return one.dtype == other.dtype and torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_observing_known_entities_equals_advancing_through_the_log(folder, runs_folder):
    log = read_log(runs_folder / "log")
    streamed, advanced = Session.open(folder), Session.open(folder)
    events = [
        Event(str(log.user_ids[u]), str(log.item_ids[i]), t)
        for u, i, t in zip(log.user[2400:].tolist(), log.item[2400:].tolist(), log.time[2400:].tolist(), strict=True)
    ]
    streamed.observe(events)
    advanced.advance_to(log)
    assert {**state_bits(streamed), **UNSET} == {**state_bits(advanced), **UNSET}


def test_going_back_in_time_forgets_everything_later(folder, runs_folder):
    log, session = read_log(runs_folder / "log"), Session.open(folder)
    moment = float(log.time[999])
    until = int(np.searchsorted(log.time, moment, "right"))
    assert session.advance_to(log, moment) == until
    assert (session.coverage.events, session.coverage.last_time) == (until, moment)
    assert np.array_equal(session.coverage.item_counts, np.bincount(log.item[:until], minlength=log.num_items))
    assert session.advance_to(log, moment) == 0, "events at that time are applied once"


def test_popular_items_have_events(folder):
    session = Session.open(folder)
    session.coverage.item_counts[:] = 0
    session.coverage.item_counts[[3, 5, 8]] = 4, 6, 6
    items, shares = session.popular(10)
    assert items.tolist() == [5, 8, 3]
    assert shares.tolist() == pytest.approx([6 / session.coverage.events] * 2 + [4 / session.coverage.events])


def test_events_at_the_newest_time_of_another_log_are_not_applied_again(folder, runs_folder):
    log, session = read_log(runs_folder / "log"), Session.open(folder)
    newest = session.coverage.last_time
    other = replace(
        log, metadata={}, user=log.user[2390:2410], item=log.item[2390:2410], time=newest + np.arange(-10.0, 10.0)
    )
    assert session.advance_to(other) == 9


def test_a_new_entity_starts_from_the_initial_state_and_changes_no_other_state(folder):
    session, still = Session.open(folder), Session.open(folder)
    users, items = len(session.users), len(session.items)
    session.users.add("new user"), session.items.add("new item")
    session.grow()
    for side, count in enumerate((users, items)):
        if capable(session.model, HasStates) is not None:
            before = still.model.entity_states(side, torch.arange(count), still.state)
            after = session.model.entity_states(side, torch.arange(count + 1), session.state)
            assert torch.equal(after[:count], before)
            recurrence = getattr(session.model, "recurrence", session.model)
            assert torch.equal(after[count], recurrence.xi[side])
    best, scores = session.top_items(np.array([0, users]), items + 1)
    assert best.shape == (2, items + 1)
    assert np.isfinite(scores[best >= 0]).all()
    assert best[1][best[1] >= 0].max() <= items  # unused capacity is never recommended
    with_new, without = (one.top_items(np.array([0]), 5)[0] for one in (session, still))
    assert np.array_equal(with_new, without)


def test_a_hypothetical_event_leaves_no_bit_changed(folder, runs_folder):
    """For trained and added entities, with and without events, repeatedly."""
    session, happened = Session.open(folder), Session.open(folder)
    events = make_events(runs_folder, 400, seed=3)
    for at in range(0, 400, 20):
        for one in (session, happened):
            one.observe(events[at : at + 19])
        event = events[at + 19]
        for one in (session, happened):  # rows for new entities
            one.users.add(event.user), one.items.add(event.item)
            one.grow()
        before = state_bits(session)
        slots = {name: session.state[name].clone() for name in session.state if name.endswith("_slots")}
        user = np.array([session.users.find(event.user)])
        with session.hypothetical(event):
            answer = session.top_items(user, 5)
        assert state_bits(session) == before
        for name, then in slots.items():  # a table that has grown has another layout
            same_size = len(session.state[name]) == len(then)
            assert not same_size or torch.equal(session.state[name], then)
        for one in (session, happened):
            one.observe([event])
        for mine, other in zip(answer, happened.top_items(user, 5), strict=True):
            assert np.array_equal(mine, other)


def test_new_items_are_recommended_after_their_first_events(runs_folder):
    session = Session.open(make_run(runs_folder, "edge"))
    newest = session.coverage.last_time
    session.observe([Event("ann", item, newest + k) for k, item in enumerate(["a", "b"] * 6)])
    best, _ = session.top_items(np.array([session.users.find("ann")]), 2)
    assert {session.items[int(row)] for row in best[0]} == {"a", "b"}
    unseen, _ = session.top_items(np.array([session.users.find("ann")]), 600, rules=Rules(filter_seen=True))
    assert not {session.items.find("a"), session.items.find("b")} & set(unseen[0].tolist())


def test_a_model_that_cannot_grow_refuses_new_entities(runs_folder):
    session = Session.open(make_run(runs_folder, "edge"))
    session.model.supports = lambda capability, config: capability is not Growable
    session.users.add("new user")
    with pytest.raises(UsageError, match=r"accepts no users or items beyond its training log; models that can: edge"):
        session.grow()


def test_growing_never_writes_into_shared_memory():
    both = torch.arange(8.0).view(4, 2)
    table = both[:2]  # as a loader may return it: a view of a larger tensor
    more = grown(table, 3, -1.0)
    assert torch.equal(both, torch.arange(8.0).view(4, 2))
    most = grown(more, 4, torch.tensor([5.0, 6.0]))
    assert most.data_ptr() == more.data_ptr()  # within its capacity
    assert most.tolist() == [[0, 1], [2, 3], [-1, -1], [5, 6]]
    copy = most.clone()
    grown(copy, 5, 0.0)
    assert grown(most, 4, 9.0) is most
    assert torch.equal(grown(torch.nn.Parameter(copy), 6, 1.0)[:4], copy)


def test_late_events_get_the_time_of_the_last_event():
    policy = LateEventPolicy(2, 2, 10.0)
    policy.grow(3, 3)
    user, item, time = [0, 2, 2, 1, 2], [0, 2, 2, 0, 1], [12.0, 3.0, 2.0, 11.0, 10.0]
    effective, late = policy.apply(np.array(user), np.array(item), np.array(time))
    # The second event's user and item are new: 3 is not late. The fourth event's item had an event at 12.
    assert effective.tolist() == [12, 3, 3, 12, 10]
    assert late.tolist() == [False, False, True, True, False]
