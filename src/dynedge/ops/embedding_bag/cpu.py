"""embedding_bag on a CPU, compiled by numba: only the listed rows are read, in the order of the lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.gather_matmul import ALLOW_FMA, add_outer
from dynedge.ops.thread_pool import part_of_range, run_in_parts
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

ENTRIES_PER_ROW = 16  # entries that take as long as a row of other operators
REASSOCIATE = {"reassoc", "contract", "nsz"}


def embedding_bag(
    table: Tensor, values: Tensor, bucket: Tensor, noise: Tensor | None, start: Tensor, event: Tensor, item: Tensor
) -> Tensor:
    del event
    noise = torch.ones(len(item), dtype=table.dtype) if noise is None else noise
    out: Tensor = _EmbeddingBag.apply(table, values, bucket, noise, start, item)  # type: ignore[no-untyped-call]
    return out


class _EmbeddingBag(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, values: Tensor, bucket: Tensor, noise: Tensor, start: Tensor, item: Tensor
    ) -> Tensor:
        arrays = [_array(tensor) for tensor in (table, noise, start, item)]
        weight = _weights(_array(values.to(table.dtype)), bucket.numpy(), arrays[1])
        ctx.save_for_backward(table, noise, start, item, values, bucket, torch.from_numpy(weight))
        out = np.empty((len(start) - 1, table.shape[1]), arrays[0].dtype)
        run_in_parts(_sum_rows, len(item) // ENTRIES_PER_ROW, arrays[0], weight, *arrays[2:], out)
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *saved, values, bucket, weights = ctx.saved_tensors
        table, noise, start, item = arrays = [_array(tensor) for tensor in saved]
        weight, work = weights.numpy(), len(item) // ENTRIES_PER_ROW
        weight_grad, table_grad = np.zeros_like(weight), np.zeros_like(table)
        run_in_parts(_weight_grads, work, *arrays, _array(grad), weight_grad)
        run_in_parts(_table_grads, work, weight, *_by_item(weight, start, item, len(table)), _array(grad), table_grad)
        value_grads = _sum_by_bucket(weight_grad, bucket.numpy(), noise, len(values))
        return torch.from_numpy(table_grad), torch.from_numpy(value_grads).to(values.dtype), None, None, None, None


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().numpy())


@compiled
def _weights(values: Array, bucket: Array, noise: Array) -> Array:
    """[L]: the values of the entries' buckets, times the noise."""
    weight = np.zeros(len(bucket), values.dtype)
    for e in range(len(bucket)):
        if bucket[e] < len(values):
            weight[e] = values[bucket[e]] * noise[e]
    return weight


@compiled(fastmath=ALLOW_FMA)
def _sum_rows(part: int, parts: int, table: Array, weight: Array, start: Array, item: Array, out: Array) -> None:
    first, last = part_of_range(0, len(out), part, parts)
    weights, entries, items = weight.reshape(-1, 1), np.empty(len(table), np.int64), np.empty(len(table), np.int64)
    for k in range(first, last):
        count = _select(weight, start[k], start[k + 1], item, entries, items)
        out[k] = 0
        add_outer(out, k, k + 1, weights, -k, entries[:count], table, items[:count])


@compiled
def _select(weight: Array, first: int, last: int, item: Array, entries: Array, items: Array) -> int:
    """Writes the entries that have a weight, and their items; returns their number.

    Dropout leaves out a random half of the entries, which a branch could not predict.
    """
    count = 0
    for e in range(first, last):
        entries[count], items[count] = e, item[e]
        count += weight[e] != 0
    return count


@compiled(fastmath=ALLOW_FMA)
def add_row(total: Array, weight: float, row: Array) -> None:
    """total += weight · row"""
    for j in range(len(total)):
        total[j] += weight * row[j]


@compiled(fastmath=REASSOCIATE)
def _weight_grads(
    part: int, parts: int, table: Array, noise: Array, start: Array, item: Array, grad: Array, out: Array
) -> None:
    """Of the entries that dropout left; those of the others stay 0."""
    first, last = part_of_range(0, len(grad), part, parts)
    entries, items = np.empty(len(table), np.int64), np.empty(len(table), np.int64)
    for k in range(first, last):
        for i in range(_select(noise, start[k], start[k + 1], item, entries, items)):
            row, total = table[items[i]], grad[k, 0] * 0
            for j in range(len(row)):
                total += grad[k, j] * row[j]
            out[entries[i]] = total


@compiled
def _sum_by_bucket(weight_grad: Array, bucket: Array, noise: Array, buckets: int) -> Array:
    """[B]: the gradient of the values."""
    out = np.zeros(buckets, weight_grad.dtype)
    for e in range(len(bucket)):
        if bucket[e] < buckets:
            out[bucket[e]] += weight_grad[e] * noise[e]
    return out


@compiled
def _by_item(weight: Array, start: Array, item: Array, items: int) -> tuple[Array, Array, Array]:
    """Entries that have a weight, by item, and their events: item i has the places first[i] to first[i + 1] − 2.

    Place first[i + 1] − 1 is written by entries that have no weight: see `_select`.
    """
    first = np.zeros(items + 1, np.int64)
    for e in range(len(item)):
        first[item[e] + 1] += weight[e] != 0
    first[1:] = (first[1:] + 1).cumsum()
    entries, events, place = np.empty(first[items], np.int64), np.empty(first[items], np.int64), first.copy()
    for k in range(len(start) - 1):
        for e in range(start[k], start[k + 1]):
            at = place[item[e]]
            entries[at], events[at] = e, k
            place[item[e]] += weight[e] != 0
    return first, entries, events


@compiled(fastmath=ALLOW_FMA)
def _table_grads(
    part: int, parts: int, weight: Array, first: Array, entries: Array, events: Array, grad: Array, out: Array
) -> None:
    weights = weight.reshape(-1, 1)
    for i in range(len(out) * part // parts, len(out) * (part + 1) // parts):
        own = slice(first[i], first[i + 1] - 1)
        add_outer(out, i, i + 1, weights, -i, entries[own], grad, events[own])
