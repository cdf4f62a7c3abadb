"""adam on a GPU, for rows of a table. Nothing here waits for the GPU: how many rows are different is never asked."""

from __future__ import annotations

import triton
from torch import Tensor

from dynedge.ops.adam import triton_kernels as kernels
from dynedge.ops.adam.reference import BETA1, BETA2, EPSILON

BLOCK = 16  # rows a program takes


def row_step(
    value: Tensor, rows: Tensor, grad: Tensor, mean: Tensor, square: Tensor, steps: Tensor, lr: float, scale: Tensor
) -> None:
    """As the package's, in float32; rows are sorted and may repeat, then the first of equal ones counts."""
    if not len(rows):
        return
    d = value[0].numel()
    kernels.rows[(triton.cdiv(len(rows), BLOCK),)](
        *(value.detach(), rows, grad.contiguous(), mean, square, steps, scale, len(rows), lr),
        BETA1=BETA1,
        BETA2=BETA2,
        EPSILON=EPSILON,
        D=d,
        BM=BLOCK,
        BK=min(128, triton.next_power_of_2(d)),
    )
