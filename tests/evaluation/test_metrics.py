"""Metrics by hand, and what a breakdown sorts where."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynedge.data.log import EventLog
from dynedge.evaluation.breakdown import breakdown
from dynedge.evaluation.metrics import METRICS, mean, per_event, title
from dynedge.evaluation.summary import difference, summarize

RANKS = np.array([1.0, 2.5, 10.0, 10.5, 400.0])


def test_by_hand():
    expected = {
        "mrr": (1 + 1 / 2.5 + 1 / 10 + 1 / 10.5 + 1 / 400) / 5,
        "recall@1": 0.2,
        "recall@5": 0.4,
        "recall@10": 0.6,
        "recall@20": 0.8,
        "ndcg@10": (1 + 1 / np.log2(3.5) + 1 / np.log2(11)) / 5,
        "mean_rank": 84.8,
    }
    assert list(METRICS) == list(expected)
    told = summarize(RANKS, np.arange(5))
    for name, value in expected.items():
        assert mean(name, RANKS) == pytest.approx(value, abs=1e-15)
        assert told[name] == mean(name, RANKS)
    assert (told["events"], told["users"], told["ci95"]) == (5, 5, told["intervals"]["mrr"])


def test_no_events_no_numbers():
    told = summarize(np.zeros(0), np.zeros(0, np.int32), {"none": np.zeros(0, bool)})
    assert told["events"] == 0
    assert told["mrr"] is told["ci95"] is told["breakdown"]["none"]["mrr"] is None
    assert mean("mrr", np.zeros(0)) is None


def test_a_difference_is_that_of_the_metrics():
    other, user = RANKS[::-1].copy() + 1, np.array([0, 0, 1, 1, 2])
    found = difference(RANKS, other, user)
    for name in METRICS:
        assert found[name] == pytest.approx(mean(name, RANKS) - mean(name, other), abs=1e-14)
        low, high = found["intervals"][name]
        assert low <= found[name] <= high
    nothing = difference(RANKS, RANKS, user)
    assert nothing["mrr"] == 0.0
    assert nothing["ci95"] == [0.0, 0.0]


def test_titles():
    assert [title(name) for name in ("mrr", "recall@5", "ndcg@10", "mean_rank")] == [
        "MRR",
        "Recall@5",
        "NDCG@10",
        "mean rank",
    ]
    assert per_event(RANKS).shape == (5, 7)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_groups_are_what_counting_gives(rows, train_end, start):
    users, items = np.array(rows, np.int32).reshape(-1, 2).T
    log = EventLog.from_arrays(users, items, np.arange(len(rows)), num_users=6, num_items=6)
    start = min(start, len(rows))
    events = range(start, len(rows))
    train_end = min(train_end, start)
    found = breakdown(log, events, train_end)
    trained = {user for user, _ in rows[:train_end]}
    assert found["repeat item"].tolist() == [rows[k] in rows[:k] for k in events]
    assert found["known user"].tolist() == [rows[k][0] in trained for k in events]
    assert np.array_equal(found["new item"], ~found["repeat item"])
    assert np.array_equal(found["new user"], ~found["known user"])
    deciles = np.stack([found[f"decile {k} of 10"] for k in range(1, 11)])
    assert (deciles.sum(0) == 1).all()
    assert np.ptp(deciles.sum(1)) <= 1
    assert (np.diff(deciles.argmax(0)) >= 0).all()
