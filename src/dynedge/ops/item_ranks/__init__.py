"""Ranks of the true items among the candidates; ties share their mean rank.

Legend: n events, C candidates, W weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dynedge.ops.dispatch import prefer_triton
from dynedge.ops.thread_pool import part_of_range, run_in_parts
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

NUMBERS = 1024  # that take as long as a row of other operators
MAX_ROW = 1 << 14  # candidates that one program on a GPU compares; of more candidates there are too few rows for it


def ranks(scores: Tensor, true: Tensor) -> Array:
    """float64[n]: rank of candidate `true[k]` in row k of `scores` [n, C], from 1; ties share their mean rank.

    A NaN ranks below all numbers, and a constant scorer gets the middle rank, not the first.
    """
    if scores.device.type != "cpu" or scores.dtype not in (torch.float32, torch.float64):
        return reference_ranks(scores, true)
    out = np.empty(len(scores))
    run_in_parts(_count, scores.numel() // NUMBERS, np.ascontiguousarray(scores.numpy()), true.numpy(), out)
    return out


def ranks_of_weighted_sums(one: Tensor, other: Tensor, weights: Sequence[float], true: Tensor) -> Array:
    """float64[W, n]: ranks by one + weight · other, for each weight; on a CPU both are read only once."""
    if one.device.type != "cpu" or one.dtype != torch.float32:
        return np.stack([ranks(one + weight * other, true) for weight in weights])
    factors, out = np.array(weights, np.float32), np.empty((len(weights), len(one)))
    columns = one.contiguous().numpy(), other.contiguous().numpy(), factors, true.numpy(), out
    run_in_parts(_count_sums, len(weights) * one.numel() // NUMBERS, *columns)
    return out


def ranks_on_device(scores: Tensor, true: Tensor) -> Tensor:
    """float64[n]: as `ranks`, as a tensor on the device of the scores, without waiting for a GPU."""
    if scores.device.type == "cpu":
        return torch.from_numpy(ranks(scores, true))
    return _count_on_gpu(scores, true) if scores.shape[1] <= MAX_ROW else _count_in_torch(scores, true)


def reference_ranks(scores: Tensor, true: Tensor) -> Array:
    """Reference implementation of `ranks` in plain PyTorch, on any device; several passes over the scores."""
    return np.asarray(_count_in_torch(scores, true).cpu())


def _count_in_torch(scores: Tensor, true: Tensor) -> Tensor:
    scores = torch.nan_to_num(scores, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    true_score = scores.gather(1, true[:, None])
    above = (scores > true_score).sum(1)
    tied = (scores == true_score).sum(1)  # including itself
    return above.double() + (tied.double() + 1) / 2


_count_on_gpu = prefer_triton("dynedge.ops.item_ranks.triton", "count", _count_in_torch)


@compiled
def _count(part: int, parts: int, scores: Array, true: Array, out: Array) -> None:
    start, stop = part_of_range(0, len(scores), part, parts)
    for k in range(start, stop):
        out[k] = _count_row(scores[k], true[k])


@compiled
def _count_row(row: Array, true: int) -> float:
    true_score = row[true]
    above = tied = np.int32(0)
    if true_score > -np.inf:
        for score in row:  # no branch, so that this is vectorised; a comparison with NaN is false
            above += np.int32(score > true_score)
            tied += np.int32(score == true_score)
    else:  # NaN and -inf tie, below everything else
        for score in row:
            above += np.int32(score > -np.inf)
        tied = np.int32(len(row)) - above
    return above + (tied + 1) / 2


@compiled
def _count_sums(part: int, parts: int, one: Array, other: Array, weights: Array, true: Array, out: Array) -> None:
    start, stop = part_of_range(0, len(one), part, parts)
    row = np.empty(one.shape[1], one.dtype)
    for k in range(start, stop):
        for w in range(len(weights)):
            for i in range(len(row)):
                row[i] = one[k, i] + weights[w] * other[k, i]
            out[w, k] = _count_row(row, true[k])
