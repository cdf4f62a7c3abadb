"""column_sum on a GPU: every program sums some rows, then their sums are added.

torch's own sum of tall bfloat16 matrices reaches a fifth of the memory bandwidth.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from dynedge.ops.column_sum import triton_kernels

ROWS, COLUMNS = 64, 64  # that a program reads at once
PROGRAMS = 264  # at most, per block of columns


def column_sum(x: Tensor) -> Tensor:
    """As reference.column_sum; the columns of a row are adjacent."""
    n, c = x.shape
    assert x.stride(1) == 1 or c == 1
    if not (n and c):
        return x.new_zeros(c, dtype=torch.float32)
    partial = x.new_empty((min(PROGRAMS, triton.cdiv(n, ROWS)), c), dtype=torch.float32)
    grid = len(partial), triton.cdiv(c, COLUMNS)
    triton_kernels.sum_rows[grid](x, partial, n, c, x.stride(0), BM=ROWS, BK=COLUMNS)
    return partial.sum(0)
