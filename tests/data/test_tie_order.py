"""The signal in the order of equal times: the rule against plain counting, and logs made to have it or not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynedge.data import tie_order as equal_times
from dynedge.data.log import EventLog
from dynedge.data.tie_order import order_signal


def plain_mrr(user, item, first, items):
    """One event at a time: followers of the user's last item by count, then by popularity; ties: the mean rank."""
    follows, popular, last, found = {}, [0] * items, {}, []
    for k, (u, i) in enumerate(zip(user.tolist(), item.tolist(), strict=True)):
        if k >= first:
            scores = [(follows.get((last.get(u), j), 0), popular[j]) for j in range(items)]
            above = sum(score > scores[i] for score in scores)
            found.append(1 / (above + (scores.count(scores[i]) + 1) / 2))
        if u in last:
            follows[last[u], i] = follows.get((last[u], i), 0) + 1
        popular[i] += 1
        last[u] = i
    return sum(found) / max(len(found), 1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=80), st.integers(0, 80))
def test_the_rule_is_plain_counting(rows, first):
    user, item = np.array(rows, np.int32).reshape(-1, 2).T.copy()
    first = min(first, len(user))
    assert equal_times._mrr(user, item, first, 4, 7) == pytest.approx(plain_mrr(user, item, first, 7), abs=1e-12)


def test_more_pairs_than_the_first_table_holds():
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 3, 70_000, np.int32), rng.integers(0, 2000, 70_000, np.int32)
    found = equal_times._mrr(user, item, 69_950, 3, 2000)
    assert found == pytest.approx(plain_mrr(user, item, 69_950, 2000), abs=1e-12)


def baskets(ordered, count=400, size=6, items=40, seed=0):
    """Baskets bought at one moment: items that go up one by one, or in no order."""
    rng = np.random.default_rng(seed)
    rows = [(start + np.arange(size)) % items for start in rng.integers(0, items, count)]
    if not ordered:
        rows = [rng.permutation(row) for row in rows]
    return EventLog.from_arrays(
        np.repeat(rng.integers(0, 20, count), size), np.concatenate(rows), np.repeat(np.arange(count), size)
    )


def test_an_order_that_means_something_is_seen_and_one_that_does_not_is_not():
    told = order_signal(baskets(ordered=True))
    assert told["mrr"] > 0.7
    assert told["mrr_shuffled"] < 0.6 * told["mrr"]
    told = order_signal(baskets(ordered=False))
    assert told["mrr"] == pytest.approx(told["mrr_shuffled"], rel=0.15)


def test_the_work_is_bounded_and_said(monkeypatch):
    monkeypatch.setattr(equal_times, "EVENTS_AT_MOST", 1000)
    log = baskets(ordered=True)
    told = order_signal(log)
    assert (told["events"], told["scored"]) == (1000, 100)
    assert told["mrr"] == pytest.approx(plain_mrr(log.user[-1000:], log.item[-1000:], 900, 40), abs=1e-12)
