"""list_values on a CPU, compiled by numba: one pass over the entries, without tensors of their size in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.thread_pool import part_of_range, run_in_parts
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

ENTRIES_PER_ROW = 128  # entries that take as long as a row of other operators


def list_values(values: Tensor, gates: Tensor, start: Tensor, event: Tensor, bucket: Tensor) -> Tensor:
    del event
    out: Tensor = _ListValues.apply(values, gates, start, bucket)  # type: ignore[no-untyped-call]
    return out


class _ListValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, gates: Tensor, start: Tensor, bucket: Tensor) -> Tensor:
        ctx.save_for_backward(values, gates, start, bucket)
        arrays = [_array(tensor) for tensor in (values, gates, start, bucket)]
        out = np.empty(len(bucket), arrays[0].dtype)
        run_in_parts(_list_values, len(bucket) // ENTRIES_PER_ROW, *arrays, out)
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        values, gates, start, bucket = arrays = [_array(tensor) for tensor in ctx.saved_tensors]
        gate_grads, value_grads = np.zeros_like(gates), np.zeros(len(values) + 1, values.dtype)
        run_in_parts(_gate_grads, len(bucket) // ENTRIES_PER_ROW, values, start, bucket, _array(grad), gate_grads)
        _value_grads(*arrays[1:], _array(grad), value_grads)
        return torch.from_numpy(value_grads[:-1]), torch.from_numpy(gate_grads), None, None


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().numpy())


@compiled
def _list_values(part: int, parts: int, values: Array, gates: Array, start: Array, bucket: Array, out: Array) -> None:
    first, last = part_of_range(0, len(gates), part, parts)
    for k in range(first, last):
        out[start[k] : start[k + 1]] = 0
        for s in range(gates.shape[1]):
            factor = gates.dtype.type(1) + gates[k, s]
            for e in range(start[k], start[k + 1]):
                if bucket[e, s] < len(values):
                    out[e] += values[bucket[e, s]] * factor


@compiled
def _gate_grads(
    part: int, parts: int, values: Array, start: Array, bucket: Array, grad: Array, gate_grads: Array
) -> None:
    first, last = part_of_range(0, len(gate_grads), part, parts)
    for k in range(first, last):
        for e in range(start[k], start[k + 1]):
            for s in range(gate_grads.shape[1]):
                if bucket[e, s] < len(values):
                    gate_grads[k, s] += grad[e] * values[bucket[e, s]]


@compiled
def _value_grads(gates: Array, start: Array, bucket: Array, grad: Array, value_grads: Array) -> None:
    """The last of the value_grads [B + 1] is that of bucket B."""
    for k in range(len(gates)):
        for e in range(start[k], start[k + 1]):
            for s in range(gates.shape[1]):
                value_grads[bucket[e, s]] += grad[e] * (gates.dtype.type(1) + gates[k, s])
