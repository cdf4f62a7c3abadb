"""sampled_softmax on a CPU: the gradient is worked out with the loss, chunk by chunk, so that no score is kept.

Legend: as in the package's docstring.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.gather_matmul import VECTOR_BYTES
from dynedge.ops.sampled_softmax import cpu_kernels as kernels
from dynedge.ops.sampled_softmax.candidate_columns import CHUNK, CandidateColumns, ScoreBonus
from dynedge.ops.thread_pool import run_in_parts
from dynedge.utils.arrays import Array

AT_ONCE = 2**22  # numbers of the columns' gradients kept before they are added to their rows: 16 MiB


def sampled_softmax(
    wanted: Tensor,
    arena: Tensor,
    outside: Tensor,
    ids: Tensor | None,
    columns: CandidateColumns,
    item: Tensor,
    row: Tensor,
    bonus: ScoreBonus | None = None,
    negative_weight: float = 1.0,
) -> Tensor:
    value, behind = None if bonus is None else bonus.value, math.log(negative_weight)
    error: Tensor = _SampledSoftmax.apply(wanted, arena, outside, ids, value, columns, item, row, bonus, behind)  # type: ignore[no-untyped-call]
    return error


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        wanted: Tensor,
        arena: Tensor,
        outside: Tensor,
        ids: Tensor | None,
        value: Tensor | None,
        columns: CandidateColumns,
        item: Tensor,
        row: Tensor,
        bonus: ScoreBonus | None,
        behind: float,
    ) -> Tensor:
        rows, own_ids, vectors = _named_ids(ids, columns, item)
        inputs = *(_array(tensor) for tensor in (wanted, arena, outside)), vectors
        added = _added(bonus, value, wanted)
        error, grads = _compute(inputs, columns, item, row, own_ids, added, behind, any(ctx.needs_input_grad))
        ctx.grads = [torch.from_numpy(grad) for grad in grads]
        if ids is not None and rows is not None and grads:
            ctx.grads[3] = torch.sparse_coo_tensor(
                rows[None], ctx.grads[3], ids.shape, check_invariants=False, is_coalesced=True
            )
        return wanted.new_tensor(error)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[:5]
        grads = (own * grad if need else None for own, need in zip(ctx.grads, needed, strict=True))
        return *grads, None, None, None, None, None


def _added(bonus: ScoreBonus | None, value: Tensor | None, wanted: Tensor) -> tuple[Array, Array, Array]:
    """Where each event's bonuses start, their items, their values."""
    if bonus is None or value is None:
        return np.zeros(len(wanted) + 1, np.int64), np.zeros(0, np.int64), _array(wanted.new_zeros(0))
    return bonus.start.numpy(), bonus.item.numpy(), _array(value)


def _named_ids(
    ids: Tensor | None, columns: CandidateColumns, item: Tensor
) -> tuple[Tensor | None, tuple[Array, Array], Array]:
    """(rows of ids that are read, None: all; where the columns' and the true items' are among them; the rows)."""
    if ids is None:
        return None, (columns.item.numpy(), item.numpy()), np.zeros((0, 1), np.float32)
    if columns.count == len(ids):
        return None, (columns.item.numpy(), item.numpy()), _array(ids)
    named, place = torch.cat([columns.item.flatten(), item]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    of_columns, of_items = place.numpy()[: columns.item.numel()], place.numpy()[columns.item.numel() :]
    return named, (of_columns.reshape(columns.item.shape), of_items), _array(ids.detach()[named])


def _compute(
    inputs: tuple[Array, ...],
    columns: CandidateColumns,
    item: Tensor,
    row: Tensor,
    own_ids: tuple[Array, Array],
    added: tuple[Array, Array, Array],
    behind: float,
    back: bool,
) -> tuple[float, list[Array]]:
    """(the summed error, gradients of wanted, arena, outside, the rows of ids and the bonuses, if asked for)."""
    wanted, arena, outside, ids = inputs
    ids = ids.astype(wanted.dtype, copy=False)
    n, width = wanted.shape
    chunks, count = columns.row.shape
    lanes = VECTOR_BYTES // wanted.itemsize
    full = -(-count // lanes) * lanes
    at_once = max(1, min(AT_ONCE // (full * width), chunks))
    indices = columns.item.numpy(), columns.row.numpy(), columns.since.numpy(), columns.until.numpy()
    true = item.numpy(), row.numpy(), own_ids[1]
    error, pull, to_added = np.empty(n, np.float64), np.empty(n, wanted.dtype), np.zeros_like(added[2])
    to_wanted = np.empty_like(wanted) if back else wanted[:0]
    to_columns = np.empty((at_once, full, width) if back else (0, full, width), wanted.dtype)
    to_bias = np.empty((len(to_columns), full), wanted.dtype)
    grads = [np.zeros_like(table) for table in (arena, outside, ids)] if back else []
    for first in range(0, chunks, at_once):
        last = min(first + at_once, chunks)
        work = (last - first) * CHUNK * (1 + full // 64)
        made = error, pull, to_wanted, to_columns, to_bias, to_added
        run_in_parts(
            *(kernels.chunks, work, first, last, back, behind, wanted, arena, outside, ids),
            *(*indices, own_ids[0], *true, columns.count, *added, *made),
        )
        if back:
            lists = indices[1], own_ids[0], true[1], true[2]
            work = (last - first) * (CHUNK + count) // 8
            run_in_parts(kernels.scatter, work, first, last, wanted, *lists, pull, to_columns, to_bias, *grads)
    return float(error.sum()), [to_wanted, *grads, to_added] if back else []


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().numpy())
