"""Triton kernel of item_ranks."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _below_all_if_nan(score):
    return tl.where(score > float("-inf"), score, float("-inf"))


@triton.jit(do_not_specialize=["count"])
def count(scores, true, out, count, BC: tl.constexpr):
    """out [n]: the rank of column true[k] in row k of scores [n, count]; ties share their mean rank."""
    k = tl.program_id(0).to(tl.int64)
    true_score = _below_all_if_nan(tl.load(scores + k * count + tl.load(true + k)))
    above, tied = tl.zeros([BC], tl.int32), tl.zeros([BC], tl.int32)
    for low in range(0, count, BC):
        c = low + tl.arange(0, BC)
        score = _below_all_if_nan(tl.load(scores + k * count + c, mask=c < count, other=0.0))
        above += ((c < count) & (score > true_score)).to(tl.int32)
        tied += ((c < count) & (score == true_score)).to(tl.int32)
    tl.store(out + k, tl.sum(above, 0).to(tl.float64) + (tl.sum(tied, 0).to(tl.float64) + 1) / 2)
