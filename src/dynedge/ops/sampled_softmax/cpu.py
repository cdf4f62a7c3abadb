"""sampled_softmax on a CPU: the gradient is computed with the loss, chunk by chunk, so that no score is stored.

Legend: as in the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.decaying_columns import relative_to_chunks
from dynedge.ops.gather_matmul import VECTOR_BYTES
from dynedge.ops.sampled_softmax import cpu_kernels
from dynedge.ops.sampled_softmax.inputs import CHUNK, CandidateColumns, ListedScores, LossInputs, ScoreBonus
from dynedge.ops.thread_pool import run_in_parts
from dynedge.utils.array_type import Array

BUFFER = 2**22  # numbers: the columns' gradients stored before they are added to their rows, 16 MiB


def sampled_softmax(
    inputs: LossInputs,
    columns: CandidateColumns,
    bonus: ScoreBonus | None,
    log_weight: float,
    listed: ListedScores | None = None,
    q: float = 0.0,
) -> Tensor:
    """As in the package; `log_weight` is subtracted from the scores of the true items and of the listed ones."""
    query, arena, outside, id_embeddings, item, row, decay = inputs
    query, shift = relative_to_chunks(query, arena, decay, CHUNK)
    value = None if bonus is None else bonus.value
    if listed is None:
        listed = ListedScores(query.new_zeros(len(query)), query.new_full((len(query),), -torch.inf))
    tensors = query, arena, outside, id_embeddings, value, listed.true, listed.others
    loss: Tensor = _SampledSoftmax.apply(*tensors, columns, item, row, bonus, log_weight, q, shift)  # type: ignore[no-untyped-call]
    return loss


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        arena: Tensor,
        outside: Tensor,
        id_embeddings: Tensor | None,
        value: Tensor | None,
        listed_true: Tensor,
        listed_others: Tensor,
        columns: CandidateColumns,
        item: Tensor,
        row: Tensor,
        bonus: ScoreBonus | None,
        log_weight: float,
        q: float,
        shift: Tensor,
    ) -> Tensor:
        rows, id_rows, embeddings = _read_embeddings(id_embeddings, columns, item)
        tables = *(_array(tensor) for tensor in (query, arena, outside)), embeddings
        bonuses = _bonus_arrays(bonus, value, query)
        listed = _array(listed_true - log_weight), _array(listed_others - log_weight)
        backward = any(ctx.needs_input_grad)
        loss, grads = _compute(tables, columns, item, row, id_rows, bonuses, _array(shift), listed, q, backward)
        ctx.grads = [torch.from_numpy(grad) for grad in grads]
        if id_embeddings is not None and rows is not None and grads:
            ctx.grads[3] = torch.sparse_coo_tensor(
                rows[None], ctx.grads[3], id_embeddings.shape, check_invariants=False, is_coalesced=True
            )
        return query.new_tensor(loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[:7]
        grads = (own * grad if need else None for own, need in zip(ctx.grads, needed, strict=True))
        return *grads, *[None] * 7


def _bonus_arrays(bonus: ScoreBonus | None, value: Tensor | None, query: Tensor) -> tuple[Array, Array, Array]:
    """(where each event's bonuses start, their items, their values)."""
    if bonus is None or value is None:
        return np.zeros(len(query) + 1, np.int64), np.zeros(0, np.int64), _array(query.new_zeros(0))
    return bonus.start.numpy(), bonus.item.numpy(), _array(value)


def _read_embeddings(
    id_embeddings: Tensor | None, columns: CandidateColumns, item: Tensor
) -> tuple[Tensor | None, tuple[Array, Array], Array]:
    """(rows of id_embeddings that are read, None for all; places of columns and true items among them; the rows)."""
    if id_embeddings is None:
        return None, (columns.item.numpy(), item.numpy()), np.zeros((0, 1), np.float32)
    if columns.count == len(id_embeddings):
        return None, (columns.item.numpy(), item.numpy()), _array(id_embeddings)
    read, place = torch.cat([columns.item.flatten(), item]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    of_columns, of_items = place.numpy()[: columns.item.numel()], place.numpy()[columns.item.numel() :]
    return read, (of_columns.reshape(columns.item.shape), of_items), _array(id_embeddings.detach()[read])


def _compute(
    tables: tuple[Array, ...],
    columns: CandidateColumns,
    item: Tensor,
    row: Tensor,
    id_rows: tuple[Array, Array],
    bonuses: tuple[Array, Array, Array],
    shift: Array,
    listed: tuple[Array, Array],
    q: float,
    backward: bool,
) -> tuple[float, list[Array]]:
    """(total loss, gradients of query, arena, outside, rows of id_embeddings, bonuses and both listed scores, or []
    if not backward)."""
    query, arena, outside, embeddings = tables
    embeddings = embeddings.astype(query.dtype, copy=False)
    n, width = query.shape
    chunks, count = columns.row.shape
    lanes = VECTOR_BYTES // query.itemsize
    padded = -(-count // lanes) * lanes
    at_once = max(1, min(BUFFER // (padded * width), chunks))
    indices = columns.item.numpy(), columns.row.numpy(), columns.since.numpy(), columns.until.numpy()
    true = item.numpy(), row.numpy(), id_rows[1]
    loss, true_grad, bonus_grads = np.empty(n, np.float64), np.empty(n, query.dtype), np.zeros_like(bonuses[2])
    others_grad = np.empty_like(true_grad)
    query_grad = np.empty_like(query) if backward else query[:0]
    column_grads = np.empty((at_once, padded, width) if backward else (0, padded, width), query.dtype)
    bias_grads = np.empty((len(column_grads), padded), query.dtype)
    grads = [np.zeros_like(table) for table in (arena, outside, embeddings)] if backward else []
    for first in range(0, chunks, at_once):
        last = min(first + at_once, chunks)
        work = (last - first) * CHUNK * (1 + padded // 64)
        results = loss, true_grad, others_grad, query_grad, column_grads, bias_grads, bonus_grads
        run_in_parts(
            *(cpu_kernels.compute_chunks, work, first, last, backward, q, *listed, query, arena, outside, embeddings),
            *(*indices, id_rows[0], *true, columns.count, *bonuses, shift, *results),
        )
        if backward:
            lists = indices[1], id_rows[0], true[1], true[2]
            work = (last - first) * (CHUNK + count) // 8
            run_in_parts(
                *(cpu_kernels.scatter_gradients, work, first, last, query, *lists),
                *(true_grad, column_grads, bias_grads, *grads),
            )
    return float(loss.sum()), [query_grad, *grads, bonus_grads, true_grad, others_grad] if backward else []


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().numpy())
