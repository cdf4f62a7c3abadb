"""Intervals that hold what they promise: simulated users whose events hang together."""

import numpy as np
import pytest

from dynedge.evaluation import bootstrap as module
from dynedge.evaluation.bootstrap import confidence_intervals


def simulate(rng, users=600, spread=1.0):
    """Values of events whose users differ in their mean and in how active they are; the true mean is 0."""
    sizes = rng.geometric(0.05, users)
    user = np.repeat(np.arange(users), sizes)
    return rng.normal(0, spread, users)[user] + rng.normal(0, 1, len(user)), user


def coverage(user_of, times=1000, **more):
    rng, inside, width = np.random.default_rng(0), 0, 0.0
    for _ in range(times):
        values, user = simulate(rng, **more)
        ((low, high),) = confidence_intervals(values[:, None], user_of(user), resamples=400)
        inside += low <= 0 <= high
        width += (high - low) / times
    return inside / times, width


def test_they_hold_the_true_mean_95_times_in_100():
    """1,000 logs: three standard errors of a coverage of 95 % are 2.1 %."""
    share, clustered = coverage(lambda user: user)
    assert 0.929 <= share <= 0.971
    share, independent = coverage(lambda user: np.arange(len(user)), times=100)
    assert share < 0.6, "taking events for independent promises too much"
    assert clustered > 2 * independent


def test_without_clusters_they_are_the_textbook_ones():
    values = np.random.default_rng(1).normal(3, 2, 4000)
    ((low, high),) = confidence_intervals(values[:, None], np.arange(4000))
    half = 1.96 * values.std() / 4000**0.5
    assert (low, high) == (
        pytest.approx(values.mean() - half, abs=0.1 * half),
        pytest.approx(values.mean() + half, abs=0.1 * half),
    )


def test_users_dealt_into_groups_give_as_wide_an_interval(monkeypatch):
    values, user = simulate(np.random.default_rng(2), users=3000)
    ((low, high),) = confidence_intervals(values[:, None], user)
    monkeypatch.setattr(module, "GROUPS", 600)
    ((few_low, few_high),) = confidence_intervals(values[:, None], user)
    assert few_high - few_low == pytest.approx(high - low, rel=0.12)
    assert few_low == pytest.approx(low, abs=0.2 * (high - low))


def test_the_same_again_and_for_any_order_of_events():
    values, user = simulate(np.random.default_rng(3))
    found = confidence_intervals(values[:, None], user)
    assert np.array_equal(found, confidence_intervals(values[:, None], user))
    assert not np.array_equal(found, confidence_intervals(values[:, None], user, seed=1))
    order = np.random.default_rng(4).permutation(len(user))
    assert np.allclose(found, confidence_intervals(values[order, None], user[order]), atol=1e-12, rtol=0)


def test_many_metrics_at_once_are_each_by_itself():
    values, user = simulate(np.random.default_rng(5))
    both = confidence_intervals(np.stack([values, values**2], 1), user)
    assert np.array_equal(both[1], confidence_intervals(values[:, None] ** 2, user)[0])


def test_a_paired_difference_is_narrower_than_what_it_is_between():
    rng = np.random.default_rng(6)
    values, user = simulate(rng)
    better = values + 0.05 + rng.normal(0, 0.1, len(values))
    ((low, high),) = confidence_intervals((better - values)[:, None], user)
    assert 0 < low < 0.05 < high < 0.1
    spans = confidence_intervals(np.stack([values, better], 1), user)
    assert spans[0, 1] > spans[1, 0], "apart, they overlap"


def test_one_user_and_none():
    assert np.isnan(confidence_intervals(np.zeros((0, 2)), np.zeros(0))).all()
    assert confidence_intervals(np.array([[1.0], [2.0]]), np.zeros(2)).tolist() == [[1.5, 1.5]]
