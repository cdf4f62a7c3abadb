"""adam on a GPU. Nothing here waits for it: how many rows are different is never asked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import triton
from torch import Tensor

from dynedge.ops.adam import reference
from dynedge.ops.adam import triton_kernels as kernels
from dynedge.ops.adam.reference import BETA1, BETA2, EPSILON
from dynedge.ops.segment_sum.triton import segment_sum, segment_sum_at_heads, tail

BLOCK = 16  # rows a program takes
NUMBERS = 1024  # of a whole parameter
AGES = 1 << 15  # steps after which nothing is young any more: β2^t is below what float32 tells from nought


@cache
def _corrections(device: torch.device) -> Tensor:
    """float32[2, AGES]: 1 / (1 − β1^t) and 1 / (1 − β2^t), looked up by t: a power in float64 takes a row's time."""
    ages = torch.arange(AGES, dtype=torch.float64).clamp_min_(1)
    return torch.stack([1 / (1 - beta**ages) for beta in (BETA1, BETA2)]).float().to(device)


def dense_step(
    value: Tensor, grad: Tensor, mean: Tensor, square: Tensor, count: Tensor | int, lr: Tensor, scale: Tensor
) -> None:
    """As the package's, in float32."""
    size = value.numel()
    if size:
        count = torch.as_tensor(count, device=value.device)
        kernels.dense[(triton.cdiv(size, NUMBERS),)](
            *(value.detach(), grad.contiguous(), mean, square, scale, _corrections(value.device), count, size, lr),
            AGES=AGES,
            BETA1=BETA1,
            BETA2=BETA2,
            EPSILON=EPSILON,
            BM=NUMBERS,
        )


def coalesce(grad: Tensor) -> Tensor:
    """Sorted; of equal rows the first has the sum. Flagged as coalesced, so that torch asks no further.

    A table with fewer rows than are named comes whole: the rows that nobody named are −1.
    """
    if grad.sparse_dim() != 1 or grad.dense_dim() != 1:
        return reference.coalesce(grad)
    named, values, rows = grad._indices()[0], grad._values().contiguous(), len(grad)
    keys, order = torch.sort(named.int() if rows < 2**31 else named, stable=True)  # half the bytes to sort
    if rows < len(keys):
        sums = torch.zeros((rows, values.shape[1]), device=values.device)
        segment_sum(values, order, keys, sums)
        touched = torch.full((rows + 1,), -1, device=values.device)  # the last is nobody's
        keys = touched.index_copy_(0, torch.where(named >= 0, named, rows), named)[:rows]
    else:
        sums = segment_sum_at_heads(values, order, keys)
    return torch.sparse_coo_tensor(keys[None].long(), sums, grad.shape, check_invariants=False, is_coalesced=True)


def sum_of_squares(grads: Sequence[Tensor]) -> Tensor:
    """As the package's, by two launches for all of them."""
    norms = torch._foreach_norm([grad for grad in grads if grad.numel()])
    return torch.stack([norm.double() for norm in norms]).square().sum() if norms else torch.zeros(())


def row_step(
    value: Tensor, rows: Tensor, grad: Tensor, mean: Tensor, square: Tensor, steps: Tensor, lr: Tensor, scale: Tensor
) -> None:
    """As the package's, in float32; equal rows stand together; the first counts, and none below 0."""
    if not len(rows):
        return
    d = value[0].numel()
    width = min(64, max(16, triton.next_power_of_2(d)))
    kernels.rows[(triton.cdiv(len(rows), BLOCK),)](
        *(value.detach(), rows, grad.contiguous(), mean, square, steps, scale, _corrections(value.device)),
        *(len(rows), lr),
        AGES=AGES,
        BETA1=BETA1,
        BETA2=BETA2,
        EPSILON=EPSILON,
        D=d,
        BM=BLOCK,
        BK=width,
        TAIL=tail(d, width),
    )
