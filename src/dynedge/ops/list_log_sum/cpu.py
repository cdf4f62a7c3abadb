"""list_log_sum on a CPU, compiled by numba; the gradient is computed from the stored probabilities of the entries."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynedge.ops.gather_matmul import ALLOW_FMA
from dynedge.ops.list_log_sum.differentiable import differentiable_sum
from dynedge.ops.list_log_sum.inputs import SumInputs
from dynedge.ops.thread_pool import run_in_parts
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled


def list_log_sum(inputs: SumInputs) -> Tensor:
    return differentiable_sum(_sums, inputs)


def _sums(inputs: SumInputs) -> tuple[Tensor, Tensor, Tensor]:
    query, value, arena, outside, id_embeddings, lists, item, decay = inputs
    ids = arena.new_zeros(0, arena.shape[1] + 1) if id_embeddings is None else id_embeddings
    of_events = arena.new_zeros(len(query), 0) if decay is None else decay
    tables = [_array(tensor) for tensor in (query, arena, outside, ids, of_events)]
    entries = lists.start.numpy(), lists.item.numpy(), lists.row.numpy(), item.numpy()
    out, share = np.empty(len(query), tables[0].dtype), np.empty(len(value), tables[0].dtype)
    query_grad = np.empty_like(tables[0])
    work = len(value) // 8
    run_in_parts(_sum_events, work, *tables, *entries, _array(value), out, share, query_grad)
    return torch.from_numpy(out), torch.from_numpy(share), torch.from_numpy(query_grad)


@compiled(fastmath=ALLOW_FMA)
def _sum_events(
    part: int,
    parts: int,
    query: Array,
    arena: Array,
    outside: Array,
    ids: Array,
    decay: Array,
    start: Array,
    listed: Array,
    row: Array,
    item: Array,
    value: Array,
    out: Array,
    share: Array,
    query_grad: Array,
) -> None:
    """out [n]; share [L]: each entry's part of the event's sum; query_grad [n, D]: its gradient in the query."""
    n, d = len(query), arena.shape[1]
    state, width = np.empty(d, query.dtype), query.shape[1]
    for k in range(n * part // parts, n * (part + 1) // parts):
        highest = -np.inf
        query_grad[k] = 0
        for e in range(start[k], start[k + 1]):
            if listed[e] == item[k]:
                share[e] = -np.inf
                continue
            _read(state, arena, outside, row[e], decay[k])
            total = value[e]
            for j in range(d):
                total += query[k, j] * state[j]
            if len(ids):
                vector = ids[listed[e]]
                for j in range(d):
                    total += query[k, d + j] * vector[j]
                total += vector[d]
            share[e] = total
            highest = max(highest, total)
        if highest == -np.inf:
            out[k] = -np.inf
            share[start[k] : start[k + 1]] = 0
            continue
        sums = 0.0
        for e in range(start[k], start[k + 1]):
            share[e] = np.exp(share[e] - highest)
            sums += share[e]
        out[k] = highest + np.log(sums)
        for e in range(start[k], start[k + 1]):
            share[e] /= sums
            if share[e] == 0:
                continue
            _read(state, arena, outside, row[e], decay[k])
            for j in range(d):
                query_grad[k, j] += share[e] * state[j]
            if len(ids):
                vector = ids[listed[e]]
                for j in range(width - d):
                    query_grad[k, d + j] += share[e] * vector[j]


@compiled
def _read(state: Array, arena: Array, outside: Array, row: int, decay: Array) -> None:
    """state[:] = a row of the pool, with its decaying columns as they are for the event."""
    source = arena[row] if row < len(arena) else outside[row - len(arena)]
    for j in range(len(state)):
        state[j] = source[j]
    first = len(state) - len(decay)
    for j in range(len(decay)):
        state[first + j] = np.exp2(np.float64(source[first + j] - decay[j]))


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().numpy())
