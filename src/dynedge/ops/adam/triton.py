"""adam on a GPU by Triton kernels. Never waits for the GPU: the number of distinct rows is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise

import torch
import triton
from torch import Tensor

from dynedge.ops.adam import reference, triton_kernels
from dynedge.ops.adam.reference import BETA1, BETA2, EPSILON, DenseUpdate
from dynedge.ops.segment_sum.triton import segment_sum, segment_sum_at_heads, tail_width

ROW_BLOCK = 16  # rows per program
DENSE_BLOCK = 1024  # numbers of a whole parameter per program
KEY_BLOCK = 1024  # entries of a sparse gradient per program
MAX_TOGETHER = 1 << 18  # entries of sparse gradients up to which copying them costs less than launches
MAX_STEPS = 1 << 15  # from which 1 − β2^t is 1 in float32


@cache
def _corrections(device: torch.device) -> Tensor:
    """float32[2, MAX_STEPS]: 1 / (1 − β1^t) and 1 / (1 − β2^t) by t: a float64 power takes as long as a row."""
    steps = torch.arange(MAX_STEPS, dtype=torch.float64).clamp_min_(1)
    return torch.stack([1 / (1 - beta**steps) for beta in (BETA1, BETA2)]).float().to(device)


def dense_steps(updates: Sequence[DenseUpdate], scale: Tensor) -> None:
    """As in the package, in float32, in one launch for all parameters, after one that joins their gradients."""
    updates = [update for update in updates if update.value.numel()]
    torch._foreach_add_([update.steps for update in updates], 1)
    device = scale.device
    places = tuple((u.value.numel(), *(part.data_ptr() for part in (*u[:1], *u[2:]))) for u in updates)
    table, blocks = _dense_table(places, device)
    grads = torch.cat([update.grad.reshape(-1) for update in updates])
    triton_kernels.dense_steps[(len(blocks),)](
        *(table, blocks, grads, scale, _corrections(device)),
        MAX_STEPS=MAX_STEPS,
        BETA1=BETA1,
        BETA2=BETA2,
        EPSILON=EPSILON,
        BM=DENSE_BLOCK,
    )


@cache
def _dense_table(places: tuple[tuple[int, ...], ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The tables that the kernel reads, given size and addresses of each parameter.

    Made in the first step, which is launched: while a CUDA graph is captured nothing can be copied from the host.
    """
    rows, blocks, start = [], [], 0
    for number, (size, *addresses) in enumerate(places):
        rows.append([*addresses, start, size])
        blocks += [[number, block] for block in range(triton.cdiv(size, DENSE_BLOCK))]
        start += size
    return torch.tensor(rows, device=device), torch.tensor(blocks, dtype=torch.int32, device=device)


def coalesce_all(grads: Sequence[Tensor]) -> list[Tensor]:
    """`coalesce` of each; small tables of rows of the same width are sorted and summed together."""
    together: dict[int, list[int]] = {}  # by width
    for k, grad in enumerate(grads):
        if grad.sparse_dim() == grad.dense_dim() == 1 and not grad.is_coalesced():
            together.setdefault(grad.shape[1], []).append(k)
    out: list[Tensor | None] = [None] * len(grads)
    for members in together.values():
        parts = [grads[k] for k in members]
        entries, rows = sum(part._nnz() for part in parts), sum(len(part) + 1 for part in parts)
        if len(members) > 1 and 0 < entries <= MAX_TOGETHER and rows < 2**31:
            for k, grad in zip(members, _coalesce_together(parts), strict=True):
                out[k] = grad
    return [
        done if done is not None else grad if grad.is_coalesced() else coalesce(grad)
        for grad, done in zip(grads, out, strict=True)
    ]


def _coalesce_together(grads: Sequence[Tensor]) -> list[Tensor]:
    sizes, d = [grad._nnz() for grad in grads], grads[0].shape[1]
    keys = torch.empty(sum(sizes), dtype=torch.int32, device=grads[0].device)
    rows, starts = torch.empty_like(keys, dtype=torch.int64), [0, *accumulate(sizes)]
    offsets = [0, *accumulate(len(grad) + 1 for grad in grads)]
    pieces = [slice(*piece) for piece in pairwise(starts)]
    for grad, at, offset in zip(grads, pieces, offsets, strict=False):
        if count := grad._nnz():
            grid = (triton.cdiv(count, KEY_BLOCK),)
            triton_kernels.table_keys[grid](grad._indices()[0].contiguous(), keys[at], count, offset, BM=KEY_BLOCK)
    ordered, order = torch.sort(keys, stable=True)
    sums = segment_sum_at_heads(torch.cat([grad._values() for grad in grads]), order, ordered)
    for count, at, offset in zip(sizes, pieces, offsets, strict=False):
        if count:
            triton_kernels.table_rows[(triton.cdiv(count, KEY_BLOCK),)](
                *(ordered[at], rows[at], sums[at], count, offset),
                D=d,
                BM=KEY_BLOCK,
                BD=triton.next_power_of_2(d),
            )
    return [
        torch.sparse_coo_tensor(rows[at][None], sums[at], grad.shape, check_invariants=False, is_coalesced=True)
        for grad, at in zip(grads, pieces, strict=True)
    ]


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


def clip_scale(grads: Sequence[Tensor], max_norm: float, more: float) -> tuple[Tensor, Tensor]:
    """As in the package, in a few launches for all gradients."""
    norms = [norm.view(1) for norm in torch._foreach_norm([grad for grad in grads if grad.numel()])]
    total, scale = torch.empty(2, dtype=torch.float64, device=grads[0].device).unbind()
    triton_kernels.clip_scale[(1,)](
        torch.cat([grads[0].new_empty(0), *norms]), total, scale, len(norms), max_norm, more, BM=64
    )
    return total, scale


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
