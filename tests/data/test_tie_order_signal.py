"""The signal in the order of equal times: the rule against plain counting, and logs built with and without it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynedge.data import tie_order_signal
from dynedge.data.log import EventLog
from dynedge.data.tie_order_signal import order_signal


def plain_mrr(user, item, first, items):
    """One event at a time: successors of the user's last item by count, then by popularity; ties: the mean rank."""
    follows, popular, last, reciprocal = {}, [0] * items, {}, []
    for k, (u, i) in enumerate(zip(user.tolist(), item.tolist(), strict=True)):
        if k >= first:
            scores = [(follows.get((last.get(u), j), 0), popular[j]) for j in range(items)]
            above = sum(score > scores[i] for score in scores)
            reciprocal.append(1 / (above + (scores.count(scores[i]) + 1) / 2))
        if u in last:
            follows[last[u], i] = follows.get((last[u], i), 0) + 1
        popular[i] += 1
        last[u] = i
    return sum(reciprocal) / max(len(reciprocal), 1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=80), st.integers(0, 80))
def test_mrr_equals_plain_counting(rows, first):
    user, item = np.array(rows, np.int32).reshape(-1, 2).T.copy()
    first = min(first, len(user))
    assert tie_order_signal._mrr(user, item, first, 4, 7) == pytest.approx(plain_mrr(user, item, first, 7), abs=1e-12)


def test_mrr_with_more_pairs_than_the_initial_table_holds():
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 3, 70_000, np.int32), rng.integers(0, 2000, 70_000, np.int32)
    mrr = tie_order_signal._mrr(user, item, 69_950, 3, 2000)
    assert mrr == pytest.approx(plain_mrr(user, item, 69_950, 2000), abs=1e-12)


def baskets(ordered, count=400, size=6, items=40, seed=0):
    """Baskets with one time each: consecutive items in increasing order, or shuffled."""
    rng = np.random.default_rng(seed)
    rows = [(start + np.arange(size)) % items for start in rng.integers(0, items, count)]
    if not ordered:
        rows = [rng.permutation(row) for row in rows]
    return EventLog.from_arrays(
        np.repeat(rng.integers(0, 20, count), size), np.concatenate(rows), np.repeat(np.arange(count), size)
    )


def test_a_meaningful_order_is_detected_and_a_random_one_is_not():
    signal = order_signal(baskets(ordered=True))
    assert signal["mrr"] > 0.7
    assert signal["mrr_shuffled"] < 0.6 * signal["mrr"]
    signal = order_signal(baskets(ordered=False))
    assert signal["mrr"] == pytest.approx(signal["mrr_shuffled"], rel=0.15)


def test_only_the_last_events_are_used_and_their_number_is_reported(monkeypatch):
    monkeypatch.setattr(tie_order_signal, "MAX_EVENTS", 1000)
    log = baskets(ordered=True)
    signal = order_signal(log)
    assert (signal["events"], signal["scored"]) == (1000, 100)
    assert signal["mrr"] == pytest.approx(plain_mrr(log.user[-1000:], log.item[-1000:], 900, 40), abs=1e-12)
