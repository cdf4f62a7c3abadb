"""adam on a GPU by Triton kernels. Never waits for the GPU: the number of distinct rows is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import triton
from torch import Tensor

from dynedge.ops.adam import reference, triton_kernels
from dynedge.ops.adam.reference import BETA1, BETA2, EPSILON, DenseUpdate
from dynedge.ops.segment_sum.triton import segment_sum, segment_sum_at_heads, tail_width

ROW_BLOCK = 16  # rows per program
DENSE_BLOCK = 1024  # numbers of a whole parameter per program
MAX_STEPS = 1 << 15  # from which 1 − β2^t is 1 in float32


@cache
def _corrections(device: torch.device) -> Tensor:
    """float32[2, MAX_STEPS]: 1 / (1 − β1^t) and 1 / (1 − β2^t) by t: a float64 power takes as long as a row."""
    steps = torch.arange(MAX_STEPS, dtype=torch.float64).clamp_min_(1)
    return torch.stack([1 / (1 - beta**steps) for beta in (BETA1, BETA2)]).float().to(device)


def dense_steps(updates: Sequence[DenseUpdate], scale: Tensor) -> None:
    torch._foreach_add_([update.steps for update in updates], 1)
    for update in updates:
        dense_step(*update, scale)


def dense_step(
    value: Tensor, grad: Tensor, mean: Tensor, square: Tensor, count: Tensor | int, lr: Tensor, scale: Tensor
) -> None:
    """As in the package, in float32."""
    size = value.numel()
    if size:
        count = torch.as_tensor(count, device=value.device)
        triton_kernels.dense_step[(triton.cdiv(size, DENSE_BLOCK),)](
            *(value.detach(), grad.contiguous(), mean, square, scale, _corrections(value.device), count, size, lr),
            MAX_STEPS=MAX_STEPS,
            BETA1=BETA1,
            BETA2=BETA2,
            EPSILON=EPSILON,
            BM=DENSE_BLOCK,
        )


def coalesce(grad: Tensor) -> Tensor:
    """Sorted by row; the first of equal rows has the sum. Flagged as coalesced, so that torch does not do it again.

    If the table has fewer rows than the gradient has entries, all its rows are returned: those without gradient
    have the index −1.
    """
    if grad.sparse_dim() != 1 or grad.dense_dim() != 1:
        return reference.coalesce(grad)
    rows, values, size = grad._indices()[0], grad._values().contiguous(), len(grad)
    keys, order = torch.sort(rows.int() if size < 2**31 else rows, stable=True)  # half the bytes to sort
    if size < len(keys):
        sums = torch.zeros((size, values.shape[1]), device=values.device)
        segment_sum(values, order, keys, sums)
        touched = torch.full((size + 1,), -1, device=values.device)  # the last one is a dummy
        keys = touched.index_copy_(0, torch.where(rows >= 0, rows, size), rows)[:size]
    else:
        sums = segment_sum_at_heads(values, order, keys)
    return torch.sparse_coo_tensor(keys[None].long(), sums, grad.shape, check_invariants=False, is_coalesced=True)


def sum_of_squares(grads: Sequence[Tensor]) -> Tensor:
    """As in the package, in two launches for all gradients."""
    norms = torch._foreach_norm([grad for grad in grads if grad.numel()])
    return torch.stack(norms).double().square_().sum() if norms else torch.zeros(())


def row_step(
    value: Tensor, rows: Tensor, grad: Tensor, mean: Tensor, square: Tensor, steps: Tensor, lr: Tensor, scale: Tensor
) -> None:
    """As in the package, in float32. Of adjacent equal rows only the first counts; negative rows are skipped."""
    if not len(rows):
        return
    d = value[0].numel()
    width = min(64, max(16, triton.next_power_of_2(d)))
    triton_kernels.row_step[(triton.cdiv(len(rows), ROW_BLOCK),)](
        *(value.detach(), rows, grad.contiguous(), mean, square, steps, scale, _corrections(value.device)),
        *(len(rows), lr),
        MAX_STEPS=MAX_STEPS,
        BETA1=BETA1,
        BETA2=BETA2,
        EPSILON=EPSILON,
        D=d,
        BM=ROW_BLOCK,
        BK=width,
        TAIL=tail_width(d, width),
    )
