"""Ranks with honest ties, and the usual means over them.

Legend: n events, C candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ranks(scores: Tensor, true: Tensor) -> Tensor:
    """float64[n]: the rank of candidate `true[k]` in row k of `scores` [n, C], from 1; ties share their mean rank.

    A score that is not a number ranks below all others, and a constant scorer gets the middle rank, not the first.
    """
    scores = torch.nan_to_num(scores, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    mine = scores.gather(1, true[:, None])
    above = (scores > mine).sum(1)
    tied = (scores == mine).sum(1)  # itself among them
    return above.double() + (tied.double() + 1) / 2


def mrr(ranks: Tensor) -> float:
    """The mean reciprocal rank."""
    return float((1 / ranks).mean()) if len(ranks) else 0.0


def recall(ranks: Tensor, k: int) -> float:
    """The share of events whose true item is among the first k. A tie across the border counts by its mean rank."""
    return float((ranks <= k).double().mean()) if len(ranks) else 0.0
