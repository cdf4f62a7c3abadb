"""Negatives of the sampled protocols: distinct, never the true item, deterministic, and uniform."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynedge.evaluation.negatives import evaluation_candidates


def negatives(events, true, *rest, **more):
    candidates = evaluation_candidates(events, torch.from_numpy(true.astype(np.int64)), *rest, **more).numpy()
    assert np.array_equal(candidates[:, 0], true)
    return candidates[:, 1:]


@given(st.integers(1, 40), st.integers(0, 50), st.data())
def test_negatives_are_distinct_and_never_the_true_item(items, count, data):
    true = np.array(data.draw(st.lists(st.integers(0, items - 1), max_size=20)), np.int64)
    sampled = negatives(range(100, 100 + len(true)), true, items, count)
    assert sampled.shape == (len(true), min(count, items - 1))
    for row, item in zip(sampled.tolist(), true.tolist(), strict=True):
        assert len({*row, item}) == len(row) + 1
        assert all(0 <= negative < items for negative in row)


def test_negatives_depend_on_the_position_and_not_on_the_batch():
    true = np.random.default_rng(0).integers(0, 2000, 300)
    whole = negatives(range(5000, 5300), true, 2000, 499)
    parts = [negatives(range(5000 + k, 5000 + k + 7), true[k : k + 7], 2000, 499) for k in range(0, 294, 7)]
    assert np.array_equal(whole[:294], np.concatenate(parts))
    assert not np.array_equal(whole, negatives(range(5000, 5300), true, 2000, 499, seed=1))
    assert not np.array_equal(whole[0], negatives(range(5001, 5002), true[:1], 2000, 499)[0])


def test_negatives_stay_the_same_across_versions():
    """Ranks cached in run folders depend on them: another generator would invalidate the ranks."""
    assert negatives(range(3, 5), np.array([0, 9]), 1000, 4).tolist() == [
        [263, 186, 348, 398],
        [549, 915, 772, 541],
    ]


@pytest.mark.parametrize(("items", "count"), [(12, 4), (500, 450)])
def test_items_are_sampled_uniformly(items, count):
    """Every item but the true one is sampled equally often: within 4.5 standard errors, for all items at once."""
    n, true = 20_000, 3
    sampled = negatives(range(n), np.full(n, true), items, count)
    counts = np.bincount(sampled.ravel(), minlength=items)
    assert counts[true] == 0
    share = count / (items - 1)
    off = np.abs(np.delete(counts, true) - n * share) / (n * share * (1 - share)) ** 0.5
    assert off.max() < 4.5


def test_all_sets_of_negatives_are_equally_likely():
    """χ² over all sets of 3 of 7 items, and over all pairs of 20, within 4.5 standard errors."""
    for num_negatives, count in ((7, 3), (20, 2)):
        n = 200_000
        sampled = np.sort(negatives(range(n), np.zeros(n), num_negatives + 1, count), 1)
        times = np.unique(sampled @ (num_negatives + 1) ** np.arange(count), return_counts=True)[1]
        sets = math.comb(num_negatives, count)
        assert len(times) == sets
        chi_squared = ((times - n / sets) ** 2).sum() * sets / n
        assert abs(chi_squared - (sets - 1)) < 4.5 * (2 * (sets - 1)) ** 0.5
