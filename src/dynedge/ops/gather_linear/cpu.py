"""gather_linear on a CPU, by compiled products of gathered rows.

Legend: n rows of the result, o their width, R rows and c columns of a table.

A table with fewer rows than the result is multiplied as a whole, and its products are gathered; a larger one is
multiplied row by row as indexed. Both give the same bits: a product is summed by itself and then added.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.autograd import apply
from dynedge.ops.gather_linear import cpu_kernels
from dynedge.ops.thread_pool import run_in_parts
from dynedge.utils.array_type import Array


def gather_linear(parts: Sequence[tuple[Tensor, Tensor | None]], w: Tensor, bias: Tensor, relu: bool) -> Tensor:
    indices = tuple(None if index is None else index.numpy() for _, index in parts)
    out: Tensor = apply(_GatherLinear, w, bias, relu, indices, *(x for x, _ in parts))
    return out


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    out: Tensor = apply(_GatherRows, x, index)
    return out


class _GatherLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, w: Tensor, bias: Tensor, relu: bool, indices: tuple[Array | None, ...], *tables: Tensor
    ) -> Tensor:
        xs = [_array(x) for x in tables]
        n = next(len(xs[i]) if index is None else len(index) for i, index in enumerate(indices))
        result = w.new_empty(n, len(bias))
        out = result.numpy()
        cpu_kernels.fill_bias(out, _array(bias))
        for x, index, weights in zip(xs, indices, _columns(w, xs), strict=True):
            _add_product(out, x, index, cpu_kernels.transposed(weights))
        if relu:
            cpu_kernels.relu_in_place(out)
        ctx.relu, ctx.indices = relu, indices
        ctx.save_for_backward(w, result if relu else None, *tables)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        w, result, *tables = ctx.saved_tensors
        xs = [_array(x) for x in tables]
        upstream = _array(grad)
        out = result.numpy() if ctx.relu else upstream
        pre_relu, bias_grad = np.empty_like(upstream), np.zeros(len(w), upstream.dtype)
        cpu_kernels.relu_backward(upstream, out, ctx.relu, pre_relu, bias_grad)
        w_grads, table_grads = [], []
        for i, (x, index, weights) in enumerate(zip(xs, ctx.indices, _columns(w, xs), strict=True)):
            needed = ctx.needs_input_grad[4 + i]
            w_grad, x_grad = _backward_part(pre_relu, x, index, np.ascontiguousarray(weights) if needed else None)
            w_grads.append(w_grad)
            table_grads.append(None if x_grad is None else torch.from_numpy(x_grad))
        whole = w_grads[0] if len(w_grads) == 1 else np.concatenate(w_grads, 1)
        return torch.from_numpy(whole), torch.from_numpy(bias_grad), None, None, *table_grads


def _add_product(out: Array, x: Array, index: Array | None, w: Array) -> None:
    """out += x[index] @ w"""
    if index is not None and len(x) < len(index):
        products = np.zeros((len(x), out.shape[1]), out.dtype)
        run_in_parts(cpu_kernels.add_matmul_rows, len(x), products, x, np.arange(len(x)), w)
        run_in_parts(cpu_kernels.gather_add, len(index) // 4, out, products, index)
    else:
        run_in_parts(cpu_kernels.add_matmul_rows, len(out), out, x, _row_numbers(x, index), w)


def _backward_part(grad: Array, x: Array, index: Array | None, w: Array | None) -> tuple[Array, Array | None]:
    """Gradients of the weights [o, c] and, if w [o, c] is given, of the table [R, c]."""
    if index is not None and len(x) < len(index):
        sums = np.zeros((len(x), grad.shape[1]), grad.dtype)
        run_in_parts(cpu_kernels.scatter_add, len(index) // 4, sums, grad, index)
        grad, index = sums, None
    rows_read = _row_numbers(x, index)
    w_grad = np.zeros((grad.shape[1], x.shape[1]), grad.dtype)
    run_in_parts(cpu_kernels.add_outer_rows, len(rows_read), w_grad, grad, x, rows_read)
    if w is None:
        return w_grad, None
    row_grads = np.zeros((len(rows_read), x.shape[1]), grad.dtype)
    run_in_parts(cpu_kernels.add_matmul_rows, len(row_grads), row_grads, grad, np.arange(len(row_grads)), w)
    if index is None:
        return w_grad, row_grads
    x_grad = np.zeros_like(x)
    run_in_parts(cpu_kernels.scatter_add, len(index) // 4, x_grad, row_grads, index)
    return w_grad, x_grad


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.count = len(x)
        return x.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        x_grad = grad.new_zeros(ctx.count, grad.shape[1])
        run_in_parts(cpu_kernels.scatter_add, len(grad) // 4, x_grad.numpy(), grad.numpy(), index.numpy())
        return x_grad, None


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().numpy())


def _columns(w: Tensor, xs: list[Array]) -> list[Array]:
    """The columns of w [o, Σ c] that belong to each table."""
    whole = w.detach().numpy()
    if len(xs) == 1:
        return [whole]
    ends = list(accumulate(x.shape[1] for x in xs))
    return [whole[:, end - x.shape[1] : end] for x, end in zip(xs, ends, strict=True)]


def _row_numbers(x: Array, index: Array | None) -> Array:
    return np.arange(len(x)) if index is None else index
