"""ranks in one pass, against the reference and against counting by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynedge.ops.item_ranks import ranks, ranks_of_weighted_sums, reference_ranks

VALUES = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, math.inf, -math.inf, math.nan])


def rank_by_hand(row, true):
    """Mean over all orders of tied scores: those above, itself, and half of those tied with it."""
    row = [-math.inf if math.isnan(score) else score for score in row]
    return 1 + sum(score > row[true] for score in row) + (row.count(row[true]) - 1) / 2


@given(st.lists(VALUES, min_size=1, max_size=70), st.data(), st.sampled_from([torch.float32, torch.float64]))
def test_ranks_by_hand(row, data, dtype):
    true = data.draw(st.integers(0, len(row) - 1))
    scores = torch.tensor([row], dtype=dtype)
    assert ranks(scores, torch.tensor([true])).tolist() == [rank_by_hand(row, true)]
    assert reference_ranks(scores, torch.tensor([true])).tolist() == [rank_by_hand(row, true)]


@pytest.mark.parametrize("items", [1, 7, 64, 1000, 4097])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_ranks_equal_the_reference(items, dtype):
    generator = torch.Generator().manual_seed(items)
    scores = torch.randint(-5, 6, (50, items), generator=generator).to(dtype)  # ties everywhere
    for value in (math.nan, math.inf, -math.inf):
        scores[torch.rand(scores.shape, generator=generator) < 0.1] = value
    true = torch.randint(items, (50,), generator=generator)
    true[0], true[1] = 0, items - 1
    assert np.array_equal(ranks(scores, true), reference_ranks(scores, true))
    by_item = scores.T.contiguous().T
    assert np.array_equal(ranks(by_item, true), reference_ranks(scores, true))


def test_non_contiguous_scores_and_no_events():
    scores = torch.randn(9, 20, generator=torch.Generator().manual_seed(0))
    true = torch.arange(9)
    assert np.array_equal(
        ranks(torch.cat([scores, scores], 1)[:, ::2], true), reference_ranks(scores.repeat(1, 2)[:, ::2], true)
    )
    assert np.array_equal(ranks(torch.zeros(1, 1).expand(9, 20), true), np.full(9, 10.5))
    assert len(ranks(scores[:0], true[:0])) == 0


def test_a_constant_scorer_gets_the_middle_rank():
    for value in (0.0, math.inf, -math.inf, math.nan):
        assert ranks(torch.full((1, 9), value), torch.tensor([8])).tolist() == [5.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranks_of_weighted_sums(dtype):
    """Exactly: what ties in the sum ties here."""
    generator = torch.Generator().manual_seed(3)
    one, other = (torch.randn(40, 333, generator=generator).mul(4).round().div(7).to(dtype) for _ in range(2))
    one[torch.rand(one.shape, generator=generator) < 0.2] = -math.inf
    other = other.T.contiguous().T
    true = torch.randint(333, (40,), generator=generator)
    weights = [0.0, 0.1, 0.3, 1.4]
    actual = ranks_of_weighted_sums(one, other, weights, true)
    assert np.array_equal(actual, [reference_ranks(one + weight * other, true) for weight in weights])
