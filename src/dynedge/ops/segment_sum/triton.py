"""segment_sum on a GPU by Triton kernels.

Legend: N rows to sum, S keys.
"""

from __future__ import annotations

from typing import NamedTuple

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


class Readers(NamedTuple):
    """Which positions of an index read each row of a table, for summing gradients of the rows that were read."""

    single: Tensor  # int32[R]: the position that reads the row, if there is one only; else −1
    keys: Tensor | None  # int[N], sorted: the row that each position reads, or −1 if no other reads it; None: all −1
    order: Tensor | None  # int32[N]: the positions in the order of `keys`


@remember
def readers(index: Tensor, rows: int, distinct: bool) -> Readers:
    """Of a table of `rows` rows, by index int[N]; negative entries read none. `distinct`: none is read twice."""
    positions = torch.arange(len(index), dtype=torch.int32, device=index.device)
    single = torch.full((rows + 1,), -1, dtype=torch.int32, device=index.device)  # the last one is a dummy
    if distinct:
        return Readers(single.index_copy_(0, torch.where(index >= 0, index, rows).long(), positions)[:-1], None, None)
    keys, order = torch.sort(index, stable=True)
    repeats = torch.zeros_like(keys, dtype=torch.bool)
    same = keys[1:] == keys[:-1]
    repeats[1:] |= same
    repeats[:-1] |= same
    order = order.int()
    single.index_copy_(0, torch.where(repeats | (keys < 0), rows, keys).long(), order)
    return Readers(single[:-1], torch.where(repeats, keys, -1), order)


def sum_by_row(values: Tensor, read: Readers, base: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """float32[R, d]: `base` plus each row's sum of the values [N, d] at the positions that read it, times `scale`.

    Rows that one position reads take one pass; the others are summed as by `segment_sum`.
    """
    rows, d = len(read.single), values.shape[1]
    out = values.new_empty((rows, d), dtype=torch.float32)
    if rows and d:
        width = min(64, max(16, triton.next_power_of_2(d)))
        triton_kernels.add_readers[(triton.cdiv(rows, BLOCK),)](
            *(out if base is None else base, values, read.single, out, out if scale is None else scale, rows),
            *(values.stride(0),),
            D=d,
            BM=BLOCK,
            BK=width,
            HAS_BASE=base is not None,
            HAS_SCALE=scale is not None,
        )
    if read.keys is not None and read.order is not None:
        segment_sum(values, read.order, read.keys, out, scale, add=True)
    return out


def segment_sum(
    values: Tensor, source: Tensor, keys: Tensor, out: Tensor, scale: Tensor | None = None, add: bool = False
) -> None:
    """As reference.segment_sum, with out in float32, times `scale`. Negative keys are skipped.

    `add`: the sums are added to the rows of out.
    """
    _sum_by_key(values, source, keys, out, True, scale, add)


def segment_sum_at_heads(values: Tensor, source: Tensor, keys: Tensor) -> Tensor:
    """float32[N, d]: each key's sum at its first position, zeros elsewhere; needs no wait for the number of keys."""
    out = values.new_empty((len(keys), values.shape[1]), dtype=torch.float32)
    _sum_by_key(values, source, keys, out, False)
    return out


def _sum_by_key(
    values: Tensor,
    source: Tensor,
    keys: Tensor,
    out: Tensor,
    by_key: bool,
    scale: Tensor | None = None,
    add: bool = False,
) -> None:
    count, d = len(keys), values.shape[1]
    if not count:
        return
    partial = out.new_empty(count, d)
    grid, width = (triton.cdiv(count, BLOCK),), min(64, max(16, triton.next_power_of_2(d)))
    shape = {"D": d, "BM": BLOCK, "BK": width, "TAIL": tail_width(d, width)}
    shape |= {"BY_KEY": by_key, "ADD": add, "HAS_SCALE": scale is not None}
    outputs = out, partial if scale is None else scale, count
    triton_kernels.sum_within_blocks[grid](values, source, keys, partial, *outputs, values.stride(0), **shape)
    triton_kernels.sum_across_blocks[grid](partial, keys, *outputs, **shape)


def tail_width(d: int, width: int) -> int:
    """Width of the tile for the columns that are left after tiles of `width`."""
    return max(16, triton.next_power_of_2(d % width)) if d % width else width
