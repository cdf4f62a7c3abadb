"""segment_sum on a GPU by Triton kernels.

Legend: N rows to sum, S keys.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from dynedge.ops.remember import remember
from dynedge.ops.segment_sum import triton_kernels

BLOCK = 32  # positions per program


@remember
def sorted_index(index: Tensor) -> tuple[Tensor, Tensor]:
    """(int[N] sorted keys, int32[N] where they are in `index`), equal keys in their order."""
    keys, order = torch.sort(index, stable=True)
    return keys, order.int()


def segment_sum(values: Tensor, source: Tensor, keys: Tensor, out: Tensor, scale: Tensor | None = None) -> None:
    """As reference.segment_sum, with out in float32, times `scale`. Negative keys are skipped."""
    _sum_by_key(values, source, keys, out, True, scale)


def segment_sum_at_heads(values: Tensor, source: Tensor, keys: Tensor) -> Tensor:
    """float32[N, d]: each key's sum at its first position, zeros elsewhere; needs no wait for the number of keys."""
    out = values.new_empty((len(keys), values.shape[1]), dtype=torch.float32)
    _sum_by_key(values, source, keys, out, False)
    return out


def _sum_by_key(
    values: Tensor, source: Tensor, keys: Tensor, out: Tensor, by_key: bool, scale: Tensor | None = None
) -> None:
    count, d = len(keys), values.shape[1]
    if not count:
        return
    partial = out.new_empty(count, d)
    grid, width = (triton.cdiv(count, BLOCK),), min(64, max(16, triton.next_power_of_2(d)))
    shape = {"D": d, "BM": BLOCK, "BK": width, "TAIL": tail_width(d, width)}
    shape |= {"BY_KEY": by_key, "HAS_SCALE": scale is not None}
    outputs = out, partial if scale is None else scale, count
    triton_kernels.sum_within_blocks[grid](values, source, keys, partial, *outputs, values.stride(0), **shape)
    triton_kernels.sum_across_blocks[grid](partial, keys, *outputs, **shape)


def tail_width(d: int, width: int) -> int:
    """Width of the tile for the columns that are left after tiles of `width`."""
    return max(16, triton.next_power_of_2(d % width)) if d % width else width
