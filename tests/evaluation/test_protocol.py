"""Ranks against a brute-force ranker in plain Python that shares no code with the package."""

from collections import Counter

import numpy as np
import pytest
import torch
from evaluation.scorers import Constant, LastItem, NanForUnseen, Popular, PopularById
from hypothesis import given
from hypothesis import strategies as st
from models.every_model import make_log

from dynedge.data.log import EventLog
from dynedge.evaluation import protocol
from dynedge.evaluation.metrics import METRICS, mean, per_event
from dynedge.evaluation.negatives import evaluation_candidates
from dynedge.evaluation.protocol import PROTOCOLS, rank_events

events = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=40)


def log_of(rows, items=9):
    users, things = zip(*rows, strict=True)
    return EventLog.from_arrays(users, things, np.arange(len(rows)), num_users=4, num_items=items)


def mean_position(score, true, candidates):
    """Returns the mean rank of the true item over all orders of equal scores."""
    above = [one for one in candidates if score(one) > score(true)]
    equal = [one for one in candidates if score(one) == score(true)]
    return len(above) + (1 + len(equal)) / 2


def brute(rows, kind, candidates_of):
    """Returns the rank of every event's item, predicted from the events before it."""
    ranks = []
    for k, (user, item) in enumerate(rows):
        seen = Counter(thing for _, thing in rows[:k])
        own = [thing for who, thing in rows[:k] if who == user][-1:]
        score = {
            Constant: lambda one: 0,
            Popular: lambda one, seen=seen: seen[one],
            NanForUnseen: lambda one, seen=seen: seen[one],  # NaN ranks last, as a count of 0 does
            LastItem: lambda one, own=own: one in own,
        }[kind]
        ranks.append(mean_position(score, item, candidates_of(k, item)))
    return ranks


@given(events, st.sampled_from([Constant, Popular, NanForUnseen, LastItem]), st.integers(1, 50))
def test_full_ranks_equal_brute_force(rows, kind, chunk):
    """With many ties, unseen items, and the last id among the candidates."""
    log = log_of(rows)
    model = kind.of(log)
    ranks = rank_events(model, log, range(len(log)), model.start(), max_events=chunk)
    assert ranks.tolist() == brute(rows, kind, lambda k, item: range(9))


@given(events, st.integers(1, 50))
def test_sampled_ranks_equal_brute_force_among_the_same_candidates(rows, chunk):
    log = log_of(rows, items=700)
    model = Popular.of(log)
    ranks = rank_events(model, log, range(len(log)), model.start(), protocol="sampled-499", max_events=chunk)

    def sampled(k, item):
        return evaluation_candidates(range(k, k + 1), torch.tensor([item]), 700, 499)[0].tolist()

    assert ranks.tolist() == brute(rows, Popular, sampled)


def test_the_last_id_and_unseen_items_are_ranked_like_any_other():
    log = log_of([(0, 1), (0, 8), (1, 8), (1, 0)])
    ranks = rank_events(Popular.of(log), log, range(4), Popular.of(log).start())
    assert ranks.tolist() == [5.0, 5.5, 1.5, 6.0]


def test_with_few_items_sampled_ranks_equal_full_ranks():
    log = make_log()
    ranks = [
        rank_events(LastItem.of(log), log, range(len(log)), LastItem.of(log).start(), protocol=name)
        for name in PROTOCOLS
    ]
    assert all(np.array_equal(ranks[0], other) for other in ranks[1:])


def test_sampled_candidates_are_the_same_for_every_model(monkeypatch):
    """For every model and chunk size."""
    rng = np.random.default_rng(0)
    log = EventLog.from_arrays(rng.integers(0, 9, 300), rng.integers(0, 2000, 300), np.arange(300), num_items=2000)
    candidates_by_model = []
    for kind, chunk in [(Constant, 5000), (Popular, 200), (LastItem, 1)]:
        model, received = kind.of(log), []
        real = model.score

        def score(prepared, candidates, state, real=real, received=received):
            received.append(candidates.numpy().copy())
            return real(prepared, candidates, state)

        monkeypatch.setattr(model, "score", score)
        rank_events(model, log, range(200, 300), model.start(), protocol="sampled-499", max_events=chunk)
        candidates_by_model.append(np.concatenate(received))
    assert candidates_by_model[0].shape == (100, 500)
    assert np.array_equal(candidates_by_model[0], candidates_by_model[1])
    assert np.array_equal(candidates_by_model[0], candidates_by_model[2])


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("kind", [Constant, Popular, NanForUnseen, LastItem])
def test_ranks_do_not_depend_on_chunk_size_or_on_splitting_the_events(kind, name, monkeypatch):
    log = make_log(events=300, items=40)
    ranks = []
    for chunk in (1, 7, 200, 5000):
        model = kind.of(log)
        ranks.append(rank_events(model, log, range(300), model.start(), protocol=name, max_events=chunk))
    state = model.start()
    halves = [rank_events(model, log, part, state, protocol=name) for part in (range(130), range(130, 300))]
    monkeypatch.setattr(protocol, "CHUNK_SCORES", 100)  # two events at once
    ranks += [np.concatenate(halves), rank_events(model, log, range(300), model.start(), protocol=name)]
    for other in ranks[1:]:
        assert np.array_equal(ranks[0], other)


def renamed(log, order):
    """The same log with item ids permuted."""
    return EventLog.from_arrays(log.user, order[log.item], log.time, num_users=log.num_users, num_items=log.num_items)


def test_ids_do_not_break_ties():
    """Ids are numbered by first appearance, so preferring the lower id among ties would reveal the next new item."""
    rng = np.random.default_rng(1)
    first = np.unique(np.minimum(rng.zipf(1.3, 600), 80), return_inverse=True)[1]
    things = np.unique(first, return_index=True)[1].argsort().argsort()[first]  # numbered by first appearance
    log = EventLog.from_arrays(rng.integers(0, 30, 600), things, np.arange(600))
    other = renamed(log, np.arange(log.num_items)[::-1].copy())

    def metrics(kind, log):
        ranks = rank_events(kind.of(log), log, range(len(log)), kind.of(log).start())
        return {name: mean(name, ranks) for name in METRICS}

    assert metrics(Popular, log) == metrics(Popular, other)
    assert metrics(NanForUnseen, log) == metrics(NanForUnseen, other)
    leaking, correct = metrics(PopularById, log), metrics(Popular, log)
    assert leaking["mrr"] > metrics(PopularById, other)["mrr"]
    assert leaking["mrr"] > correct["mrr"], "the leak raises the metric, so it must be impossible"


def test_a_callback_receives_the_events_of_each_chunk():
    log, chunks = make_log(), []
    rank_events(Constant.of(log), log, range(100), Constant.of(log).start(), max_events=40, on_progress=chunks.append)
    assert chunks == [40, 40, 20]
    assert per_event(rank_events(Constant.of(log), log, range(0), Constant.of(log).start())).shape == (0, 7)
