"""Ranks by the Triton kernel against the reference: the same numbers, with ties, infinities and NaN."""

from __future__ import annotations

import math

import pytest
import torch
from ops.triton_interpreter import DEVICE

from dynedge.ops.item_ranks import reference_ranks
from dynedge.ops.item_ranks.triton import count

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("poisoned_anywhere")]


@pytest.mark.parametrize(("n", "items"), [(0, 3), (1, 1), (20, 7), (9, 500), (5, 1024), (4, 2100)])
def test_ranks_equal_the_reference(n: int, items: int) -> None:
    torch.manual_seed(items)
    scores = torch.randint(-5, 6, (n, items)).float()
    for value in (math.nan, math.inf, -math.inf):
        scores[torch.rand(scores.shape) < 0.1] = value
    true = torch.randint(items, (n,))
    got = count(scores.to(DEVICE), true.to(DEVICE))
    assert got.dtype == torch.float64 and got.tolist() == reference_ranks(scores, true).tolist()
