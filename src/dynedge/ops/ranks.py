"""Ranks with honest ties.

Legend: n events, C candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled


def ranks(scores: Tensor, true: Tensor) -> Array:
    """float64[n]: the rank of candidate `true[k]` in row k of `scores` [n, C], from 1; ties share their mean rank.

    A score that is not a number ranks below all others, and a constant scorer gets the middle rank, not the first.
    """
    if scores.device.type != "cpu" or scores.dtype not in (torch.float32, torch.float64):
        return reference_ranks(scores, true)
    plain = scores.numpy()
    if plain.T.flags.c_contiguous:  # some operators make scores by item
        return _count_by_item(plain.T, true.numpy())
    return _count(np.ascontiguousarray(plain), true.numpy())


def ranks_of_weighted_sums(one: Tensor, other: Tensor, weights: Sequence[float], true: Tensor) -> Array:
    """float64[W, n]: the same of one + weight · other, for each weight; on a CPU both are read once for all."""
    if one.device.type != "cpu" or one.dtype != torch.float32:
        return np.stack([ranks(one + weight * other, true) for weight in weights])
    factors = np.array(weights, np.float32)
    return _count_sums(one.contiguous().numpy(), other.contiguous().numpy(), factors, true.numpy())


def ranks_on_device(scores: Tensor, true: Tensor) -> Tensor:
    """The same as a tensor where the scores are, so that nobody waits for a GPU."""
    return torch.from_numpy(ranks(scores, true)) if scores.device.type == "cpu" else _counted(scores, true)


def reference_ranks(scores: Tensor, true: Tensor) -> Array:
    """The same in plain torch, for any device; several passes over the scores."""
    return np.asarray(_counted(scores, true).cpu())


def _counted(scores: Tensor, true: Tensor) -> Tensor:
    scores = torch.nan_to_num(scores, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    mine = scores.gather(1, true[:, None])
    above = (scores > mine).sum(1)
    tied = (scores == mine).sum(1)  # itself among them
    return above.double() + (tied.double() + 1) / 2


@compiled
def _count(scores: Array, true: Array) -> Array:
    found = np.empty(len(scores))
    for k in range(len(scores)):
        found[k] = _count_row(scores[k], true[k])
    return found


@compiled
def _count_row(row: Array, true: int) -> float:
    mine = row[true]
    above = tied = np.int32(0)
    if mine > -np.inf:
        for score in row:  # no branch: the compiler counts many at once; a comparison with NaN is false
            above += np.int32(score > mine)
            tied += np.int32(score == mine)
    else:  # NaN and -inf are the same: below all others
        for score in row:
            above += np.int32(score > -np.inf)
        tied = np.int32(len(row)) - above
    return above + (tied + 1) / 2


@compiled
def _count_sums(one: Array, other: Array, weights: Array, true: Array) -> Array:
    found = np.empty((len(weights), len(one)))
    row = np.empty(one.shape[1], one.dtype)
    for k in range(len(one)):
        for w in range(len(weights)):
            for i in range(len(row)):
                row[i] = one[k, i] + weights[w] * other[k, i]
            found[w, k] = _count_row(row, true[k])
    return found


@compiled
def _count_by_item(scores: Array, true: Array) -> Array:
    """The same for scores [C, n]."""
    n = len(true)
    mine = np.empty(n, scores.dtype)
    for k in range(n):
        mine[k] = scores[true[k], k]
        if np.isnan(mine[k]):
            mine[k] = -np.inf
    above, tied = np.zeros(n, np.int32), np.zeros(n, np.int32)
    for i in range(len(scores)):
        row = scores[i]
        for k in range(n):
            above[k] += np.int32(row[k] > mine[k])
            tied[k] += np.int32(row[k] == mine[k])
    for k in range(n):
        if mine[k] == -np.inf:
            tied[k] = len(scores) - above[k]
    return above + (tied + 1) / 2
