"""The walk against a brute-force ranker: one event at a time, plain Python, nothing shared with the code."""

from collections import Counter

import numpy as np
import pytest
import torch
from evaluation.scorers import Constant, LastItem, Popular, PopularById, Speechless
from hypothesis import given
from hypothesis import strategies as st
from models.every_model import make_log

from dynedge.data.log import EventLog
from dynedge.evaluation import protocol
from dynedge.evaluation.metrics import METRICS, mean, per_event
from dynedge.evaluation.negatives import evaluation_negatives
from dynedge.evaluation.protocol import PROTOCOLS, walk

events = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=40)


def log_of(rows, items=9):
    users, things = zip(*rows, strict=True)
    return EventLog.from_arrays(users, things, np.arange(len(rows)), num_users=4, num_items=items)


def mean_position(score, true, candidates):
    """Where the true item stands on the mean over all orders of equal scores."""
    above = [one for one in candidates if score(one) > score(true)]
    equal = [one for one in candidates if score(one) == score(true)]
    return len(above) + (1 + len(equal)) / 2


def brute(rows, kind, candidates_of):
    """The rank of every event's item, from what came before it."""
    found = []
    for k, (user, item) in enumerate(rows):
        seen = Counter(thing for _, thing in rows[:k])
        own = [thing for who, thing in rows[:k] if who == user][-1:]
        score = {
            Constant: lambda one: 0,
            Popular: lambda one, seen=seen: seen[one],
            Speechless: lambda one, seen=seen: seen[one],  # below all others, and what was never seen is
            LastItem: lambda one, own=own: one in own,
        }[kind]
        found.append(mean_position(score, item, candidates_of(k, item)))
    return found


@given(events, st.sampled_from([Constant, Popular, Speechless, LastItem]), st.integers(1, 50))
def test_full_is_what_brute_force_finds(rows, kind, chunk):
    """With ties everywhere, items never seen, and the last id among the candidates."""
    log = log_of(rows)
    model = kind.of(log)
    found = walk(model, log, range(len(log)), model.start(), chunk=chunk)
    assert found.tolist() == brute(rows, kind, lambda k, item: range(9))


@given(events, st.integers(1, 50))
def test_sampled_is_what_brute_force_finds_among_the_drawn(rows, chunk):
    log = log_of(rows, items=700)
    model = Popular.of(log)
    found = walk(model, log, range(len(log)), model.start(), protocol="sampled-499", chunk=chunk)

    def drawn(k, item):
        return [item, *evaluation_negatives(range(k, k + 1), torch.tensor([item]), 700, 499)[0].tolist()]

    assert found.tolist() == brute(rows, Popular, drawn)


def test_the_last_id_and_a_never_seen_item_are_ranked_like_any_other():
    log = log_of([(0, 1), (0, 8), (1, 8), (1, 0)])
    found = walk(Popular.of(log), log, range(4), Popular.of(log).start())
    assert found.tolist() == [5.0, 5.5, 1.5, 6.0]


def test_with_few_items_sampled_is_full():
    log = make_log()
    ranks = [
        walk(LastItem.of(log), log, range(len(log)), LastItem.of(log).start(), protocol=name) for name in PROTOCOLS
    ]
    assert all(np.array_equal(ranks[0], other) for other in ranks[1:])


def test_sampled_candidates_are_the_same_for_every_model(monkeypatch):
    """Whoever is asked, and in chunks of any size, is asked about the same items."""
    rng = np.random.default_rng(0)
    log = EventLog.from_arrays(rng.integers(0, 9, 300), rng.integers(0, 2000, 300), np.arange(300), num_items=2000)
    asked = []
    for kind, chunk in [(Constant, 5000), (Popular, 200), (LastItem, 1)]:
        model, met = kind.of(log), []
        real = model.score

        def score(prepared, candidates, state, real=real, met=met):
            met.append(candidates.numpy().copy())
            return real(prepared, candidates, state)

        monkeypatch.setattr(model, "score", score)
        walk(model, log, range(200, 300), model.start(), protocol="sampled-499", chunk=chunk)
        asked.append(np.concatenate(met))
    assert asked[0].shape == (100, 500)
    assert np.array_equal(asked[0], asked[1])
    assert np.array_equal(asked[0], asked[2])


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("kind", [Constant, Popular, Speechless, LastItem])
def test_chunks_of_any_size_and_a_walk_in_two_halves_give_the_same(kind, name, monkeypatch):
    log = make_log(events=300, items=40)
    found = []
    for chunk in (1, 7, 200, 5000):
        model = kind.of(log)
        found.append(walk(model, log, range(300), model.start(), protocol=name, chunk=chunk))
    state = model.start()
    halves = [walk(model, log, part, state, protocol=name) for part in (range(130), range(130, 300))]
    monkeypatch.setattr(protocol, "CHUNK_SCORES", 100)  # little memory: two events at once
    found += [np.concatenate(halves), walk(model, log, range(300), model.start(), protocol=name)]
    for other in found[1:]:
        assert np.array_equal(found[0], other)


def renamed(log, order):
    """The same log with item ids permuted."""
    return EventLog.from_arrays(log.user, order[log.item], log.time, num_users=log.num_users, num_items=log.num_items)


def test_ids_break_no_tie():
    """Ids are by first appearance: whoever prefers the lower id among equals knows which new item comes next."""
    rng = np.random.default_rng(1)
    first = np.unique(np.minimum(rng.zipf(1.3, 600), 80), return_inverse=True)[1]
    things = np.unique(first, return_index=True)[1].argsort().argsort()[first]  # numbered as they appear
    log = EventLog.from_arrays(rng.integers(0, 30, 600), things, np.arange(600))
    other = renamed(log, np.arange(log.num_items)[::-1].copy())

    def metrics(kind, log):
        ranks = walk(kind.of(log), log, range(len(log)), kind.of(log).start())
        return {name: mean(name, ranks) for name in METRICS}

    assert metrics(Popular, log) == metrics(Popular, other)
    assert metrics(Speechless, log) == metrics(Speechless, other)
    leaking, honest = metrics(PopularById, log), metrics(Popular, log)
    assert leaking["mrr"] > metrics(PopularById, other)["mrr"]
    assert leaking["mrr"] > honest["mrr"], "the leak pays, so it must be impossible"


def test_after_each_chunk_somebody_is_told():
    log, told = make_log(), []
    walk(Constant.of(log), log, range(100), Constant.of(log).start(), chunk=40, after=told.append)
    assert told == [40, 40, 20]
    assert per_event(walk(Constant.of(log), log, range(0), Constant.of(log).start())).shape == (0, 7)
