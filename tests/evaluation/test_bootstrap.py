"""Coverage and width of the bootstrap confidence intervals, on simulated users with correlated events."""

import numpy as np
import pytest

from dynedge.evaluation import bootstrap as module
from dynedge.evaluation.bootstrap import confidence_intervals


def simulate(rng, users=600, spread=1.0):
    """Returns values and users of events; users differ in their mean and their activity; the true mean is 0."""
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


@pytest.mark.slow
def test_intervals_cover_the_true_mean_95_times_in_100():
    """Over 1,000 logs; three standard errors of a coverage of 95 % are 2.1 %."""
    share, clustered = coverage(lambda user: user)
    assert 0.929 <= share <= 0.971
    share, independent = coverage(lambda user: np.arange(len(user)), times=100)
    assert share < 0.6, "treating events as independent gives intervals that are too narrow"
    assert clustered > 2 * independent


def test_with_one_event_per_user_intervals_are_the_normal_approximation():
    values = np.random.default_rng(1).normal(3, 2, 4000)
    ((low, high),) = confidence_intervals(values[:, None], np.arange(4000))
    half = 1.96 * values.std() / 4000**0.5
    assert (low, high) == (
        pytest.approx(values.mean() - half, abs=0.1 * half),
        pytest.approx(values.mean() + half, abs=0.1 * half),
    )


def test_resampling_groups_of_users_gives_equally_wide_intervals(monkeypatch):
    values, user = simulate(np.random.default_rng(2), users=3000)
    ((low, high),) = confidence_intervals(values[:, None], user)
    monkeypatch.setattr(module, "GROUPS", 600)
    ((few_low, few_high),) = confidence_intervals(values[:, None], user)
    assert few_high - few_low == pytest.approx(high - low, rel=0.12)
    assert few_low == pytest.approx(low, abs=0.2 * (high - low))


def test_intervals_are_reproducible_and_independent_of_event_order():
    values, user = simulate(np.random.default_rng(3))
    bounds = confidence_intervals(values[:, None], user)
    assert np.array_equal(bounds, confidence_intervals(values[:, None], user))
    assert not np.array_equal(bounds, confidence_intervals(values[:, None], user, seed=1))
    order = np.random.default_rng(4).permutation(len(user))
    assert np.allclose(bounds, confidence_intervals(values[order, None], user[order]), atol=1e-12, rtol=0)


def test_each_metric_has_the_interval_it_would_have_alone():
    values, user = simulate(np.random.default_rng(5))
    both = confidence_intervals(np.stack([values, values**2], 1), user)
    assert np.array_equal(both[1], confidence_intervals(values[:, None] ** 2, user)[0])


def test_the_interval_of_a_paired_difference_is_narrower():
    rng = np.random.default_rng(6)
    values, user = simulate(rng)
    better = values + 0.05 + rng.normal(0, 0.1, len(values))
    ((low, high),) = confidence_intervals((better - values)[:, None], user)
    assert 0 < low < 0.05 < high < 0.1
    spans = confidence_intervals(np.stack([values, better], 1), user)
    assert spans[0, 1] > spans[1, 0], "unpaired, the intervals overlap"


def test_one_user_and_no_events():
    assert np.isnan(confidence_intervals(np.zeros((0, 2)), np.zeros(0))).all()
    assert confidence_intervals(np.array([[1.0], [2.0]]), np.zeros(2)).tolist() == [[1.5, 1.5]]
