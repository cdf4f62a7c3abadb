"""segment_sum on a GPU.

Legend: N rows to sum, S keys.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from dynedge.ops.segment_sum import triton_kernels as kernels

BLOCK = 32  # positions a program takes


def segment_sum(values: Tensor, source: Tensor, keys: Tensor, out: Tensor) -> None:
    """As reference.segment_sum; float32 out."""
    _sums(values, source, keys, out, True)


def segment_sum_at_heads(values: Tensor, source: Tensor, keys: Tensor) -> Tensor:
    """float32[N, d]: each key's sum at its first position, nought at all others. So nobody waits for their number."""
    out = values.new_empty((len(keys), values.shape[1]), dtype=torch.float32)
    _sums(values, source, keys, out, False)
    return out


def _sums(values: Tensor, source: Tensor, keys: Tensor, out: Tensor, by_key: bool) -> None:
    count, d = len(keys), values.shape[1]
    if not count:
        return
    part = out.new_empty(count, d)
    grid, width = (triton.cdiv(count, BLOCK),), min(64, max(16, triton.next_power_of_2(d)))
    shape = {"D": d, "BM": BLOCK, "BK": width, "TAIL": tail(d, width)}
    kernels.within[grid](values, source, keys, part, count, values.stride(0), **shape)
    kernels.across[grid](part, keys, out, count, **shape, BY_KEY=by_key)


def tail(d: int, width: int) -> int:
    """How wide a tile is that takes what tiles of `width` leave of d columns."""
    return max(16, triton.next_power_of_2(d % width)) if d % width else width
