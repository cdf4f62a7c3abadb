"""Metrics computed by hand, summaries, and the groups of a breakdown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynedge.data.log import EventLog
from dynedge.evaluation.breakdown import breakdown
from dynedge.evaluation.metrics import METRICS, mean, per_event, title
from dynedge.evaluation.summary import describe_candidates, difference, summarize

RANKS = np.array([1.0, 2.5, 10.0, 10.5, 400.0])


def test_metrics_equal_values_computed_by_hand():
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
    summary = summarize(RANKS, np.arange(5))
    for name, value in expected.items():
        assert mean(name, RANKS) == pytest.approx(value, abs=1e-15)
        assert summary[name] == mean(name, RANKS)
    assert (summary["events"], summary["users"], summary["ci95"]) == (5, 5, summary["intervals"]["mrr"])


def test_metrics_are_none_without_events():
    summary = summarize(np.zeros(0), np.zeros(0, np.int32), {"none": np.zeros(0, bool)})
    assert summary["events"] == 0
    assert summary["mrr"] is summary["ci95"] is summary["breakdown"]["none"]["mrr"] is None
    assert mean("mrr", np.zeros(0)) is None


def test_a_paired_difference_is_the_difference_of_the_metrics():
    other, user = RANKS[::-1].copy() + 1, np.array([0, 0, 1, 1, 2])
    result = difference(RANKS, other, user)
    for name in METRICS:
        assert result[name] == pytest.approx(mean(name, RANKS) - mean(name, other), abs=1e-14)
        low, high = result["intervals"][name]
        assert low <= result[name] <= high
    nothing = difference(RANKS, RANKS, user)
    assert nothing["mrr"] == 0.0
    assert nothing["ci95"] == [0.0, 0.0]


def test_display_names():
    assert [title(name) for name in ("mrr", "recall@5", "ndcg@10", "mean_rank")] == [
        "MRR",
        "Recall@5",
        "NDCG@10",
        "mean rank",
    ]
    assert per_event(RANKS).shape == (5, 7)


@pytest.mark.parametrize(
    ("protocol", "items", "words"),
    [
        ("full", 46_033, "all 46,033 "),
        ("sampled-499", 46_033, "500 "),
        ("sampled-9999", 46_033, "10,000 "),
        ("sampled-9999", 15, "15 "),
    ],
)
def test_candidates_of_a_protocol_in_words(protocol, items, words):
    assert describe_candidates(protocol, items).startswith(words + "items")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_breakdown_groups_equal_a_brute_force_count(rows, train_end, start):
    users, items = np.array(rows, np.int32).reshape(-1, 2).T
    log = EventLog.from_arrays(users, items, np.arange(len(rows)), num_users=6, num_items=6)
    start = min(start, len(rows))
    events = range(start, len(rows))
    train_end = min(train_end, start)
    groups = breakdown(log, events, train_end)
    trained = {user for user, _ in rows[:train_end]}
    assert groups["repeat item"].tolist() == [rows[k] in rows[:k] for k in events]
    assert groups["known user"].tolist() == [rows[k][0] in trained for k in events]
    assert np.array_equal(groups["new item"], ~groups["repeat item"])
    assert np.array_equal(groups["new user"], ~groups["known user"])
    deciles = np.stack([groups[f"decile {k} of 10"] for k in range(1, 11)])
    assert (deciles.sum(0) == 1).all()
    assert np.ptp(deciles.sum(1)) <= 1
    assert (np.diff(deciles.argmax(0)) >= 0).all()
