"""gather_linear on a CPU, in compiled products of named rows.

Legend: n rows made, o their width, R rows and c columns of a table.

A table with fewer rows than are made is multiplied whole, and its products are named; a larger one is multiplied row
by row as named. Both ways give the same bits: a product is summed up by itself and then added.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynedge.ops.autograd import run
from dynedge.ops.gather_linear import cpu_kernels as kernels
from dynedge.ops.thread_pool import run_in_parts
from dynedge.utils.arrays import Array


def gather_linear(parts: Sequence[tuple[Tensor, Tensor | None]], w: Tensor, bias: Tensor, relu: bool) -> Tensor:
    indices = tuple(None if index is None else index.numpy() for _, index in parts)
    out: Tensor = run(_GatherLinear, w, bias, relu, indices, *(x for x, _ in parts))
    return out


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    out: Tensor = run(_GatherRows, x, index)
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
        kernels.begin(out, _array(bias))
        for x, index, own in zip(xs, indices, _columns(w, xs), strict=True):
            _add(out, x, index, kernels.turned(own))
        if relu:
            kernels.keep_positive(out)
        ctx.relu, ctx.indices = relu, indices
        ctx.save_for_backward(w, result if relu else None, *tables)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        w, result, *tables = ctx.saved_tensors
        xs = [_array(x) for x in tables]
        given = _array(grad)
        out = result.numpy() if ctx.relu else given
        turned, for_bias = np.empty_like(given), np.zeros(len(w), given.dtype)
        kernels.turn(given, out, ctx.relu, turned, for_bias)
        for_w, for_tables = [], []
        for i, (x, index, own) in enumerate(zip(xs, ctx.indices, _columns(w, xs), strict=True)):
            needed = ctx.needs_input_grad[4 + i]
            one, other = _back(turned, x, index, np.ascontiguousarray(own) if needed else None)
            for_w.append(one)
            for_tables.append(None if other is None else torch.from_numpy(other))
        whole = for_w[0] if len(for_w) == 1 else np.concatenate(for_w, 1)
        return torch.from_numpy(whole), torch.from_numpy(for_bias), None, None, *for_tables


def _add(out: Array, x: Array, index: Array | None, w: Array) -> None:
    """out += x[index] @ w"""
    if index is not None and len(x) < len(index):
        products = np.zeros((len(x), out.shape[1]), out.dtype)
        run_in_parts(kernels.add_rows, len(x), products, x, np.arange(len(x)), w)
        run_in_parts(kernels.gather_add, len(index) // 4, out, products, index)
    else:
        run_in_parts(kernels.add_rows, len(out), out, x, _named(x, index), w)


def _back(grad: Array, x: Array, index: Array | None, w: Array | None) -> tuple[Array, Array | None]:
    """(gradient of the weights [o, c], of the table [R, c] if w [o, c] is given)."""
    if index is not None and len(x) < len(index):
        sums = np.zeros((len(x), grad.shape[1]), grad.dtype)
        run_in_parts(kernels.scatter_add, len(index) // 4, sums, grad, index)
        grad, index = sums, None
    named = _named(x, index)
    for_w = np.zeros((grad.shape[1], x.shape[1]), grad.dtype)
    run_in_parts(kernels.add_outers, len(named), for_w, grad, x, named)
    if w is None:
        return for_w, None
    rows = np.zeros((len(named), x.shape[1]), grad.dtype)
    run_in_parts(kernels.add_rows, len(rows), rows, grad, np.arange(len(rows)), w)
    if index is None:
        return for_w, rows
    for_x = np.zeros_like(x)
    run_in_parts(kernels.scatter_add, len(index) // 4, for_x, rows, index)
    return for_w, for_x


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
        back = grad.new_zeros(ctx.count, grad.shape[1])
        run_in_parts(kernels.scatter_add, len(grad) // 4, back.numpy(), grad.numpy(), index.numpy())
        return back, None


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().numpy())


def _columns(w: Tensor, xs: list[Array]) -> list[Array]:
    """The columns of w [o, Σ c] that belong to each table."""
    whole = w.detach().numpy()
    if len(xs) == 1:
        return [whole]
    ends = list(accumulate(x.shape[1] for x in xs))
    return [whole[:, end - x.shape[1] : end] for x, end in zip(xs, ends, strict=True)]


def _named(x: Array, index: Array | None) -> Array:
    return np.arange(len(x)) if index is None else index
