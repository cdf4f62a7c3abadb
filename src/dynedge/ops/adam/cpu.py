"""adam on a CPU: each number is read, moved and written in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from dynedge.ops.adam import reference
from dynedge.ops.adam.reference import BETA1, BETA2, EPSILON
from dynedge.ops.gather_matmul import FUSE
from dynedge.utils.arrays import Array
from dynedge.utils.compile import compiled

NOUGHT = {torch.float32: np.float32(0), torch.float64: np.float64(0)}
LANES = 16  # sums kept apart, so that they run as vector instructions


def dense_step(
    value: Tensor, grad: Tensor, mean: Tensor, square: Tensor, count: Tensor | int, lr: Tensor, scale: Tensor
) -> None:
    grad, count = grad.contiguous(), int(count)
    if not (value.is_contiguous() and mean.is_contiguous() and square.is_contiguous()):
        reference.dense_step(value, grad, mean, square, count, lr, scale)
        return
    places = value.data_ptr(), grad.data_ptr(), mean.data_ptr(), square.data_ptr()
    factors = scale.item(), lr.item() / (1 - BETA1**count), 1 / (1 - BETA2**count)
    _dense_at(NOUGHT[value.dtype], value.numel(), *places, *factors)


def row_step(
    value: Tensor, rows: Tensor, grad: Tensor, mean: Tensor, square: Tensor, steps: Tensor, lr: Tensor, scale: Tensor
) -> None:
    if not len(rows):
        return
    tables = (tensor.detach().view(len(tensor), -1).numpy() for tensor in (value, mean, square))
    values = grad.detach().contiguous().view(len(rows), -1).numpy()
    _rows(rows.numpy(), values, *tables, steps.numpy(), lr.item(), scale.item())


def coalesce(grad: Tensor) -> Tensor:
    if grad.sparse_dim() != 1 or grad.dense_dim() != 1:
        return reference.coalesce(grad)
    rows, values = _coalesce(grad._indices()[0].numpy(), grad._values().contiguous().numpy())
    places = torch.from_numpy(rows)[None]
    return torch.sparse_coo_tensor(
        places, torch.from_numpy(values), grad.shape, check_invariants=False, is_coalesced=True
    )


def sum_of_squares(grads: Sequence[Tensor]) -> Tensor:
    total = 0.0
    for grad in grads:
        whole = grad.contiguous()
        total += _squares_at(NOUGHT[whole.dtype], whole.numel(), whole.data_ptr())
    return torch.tensor(total, dtype=torch.float64)


# A dozen parameters a window: their numbers are found by address. Making arrays of tensors would take longer than the
# step itself.


@intrinsic
def _pointer(_: Any, address: Any, like: Any) -> Any:
    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(types.int64, like), generate


@compiled
def _dense_at(
    like: Any, size: int, value: int, grad: int, mean: int, square: int, scale: float, lr: float, young: float
) -> None:
    _dense(
        numba.carray(_pointer(value, like), size),
        numba.carray(_pointer(grad, like), size),
        numba.carray(_pointer(mean, like), size),
        numba.carray(_pointer(square, like), size),
        scale,
        lr,
        young,
    )


@compiled
def _squares_at(like: Any, size: int, values: int) -> Any:
    return _squares(numba.carray(_pointer(values, like), size))


@compiled(fastmath=FUSE, error_model="numpy")
def _dense(value: Array, grad: Array, mean: Array, square: Array, scale: float, lr: float, young: float) -> None:
    """lr and young hold what the count makes of the learning rate and of the square."""
    kind = value.dtype.type
    by, move, full = kind(scale), kind(lr), kind(young)
    keep1, keep2 = kind(BETA1), kind(BETA2)
    new1, new2, epsilon = kind(1 - BETA1), kind(1 - BETA2), kind(EPSILON)
    for j in range(len(value)):
        g = grad[j] * by
        m = keep1 * mean[j] + new1 * g
        v = keep2 * square[j] + new2 * (g * g)
        mean[j], square[j] = m, v
        value[j] -= move * m / (np.sqrt(v * full) + epsilon)


@compiled
def _rows(
    rows: Array, grad: Array, value: Array, mean: Array, square: Array, steps: Array, lr: float, scale: float
) -> None:
    for k in range(len(rows)):
        r = rows[k]
        steps[r] += 1
        own, young = lr / (1 - BETA1 ** steps[r]), 1 / (1 - BETA2 ** steps[r])
        _dense(value[r], grad[k], mean[r], square[r], scale, own, young)


@compiled
def _squares(values: Array) -> float:
    """In float64, in LANES sums: whole rows of lanes first, then what is left."""
    sums, whole = np.zeros(LANES), len(values) // LANES * LANES
    for low in range(0, whole, LANES):
        for lane in range(LANES):
            x = np.float64(values[low + lane])
            sums[lane] += x * x
    for j in range(whole, len(values)):
        x = np.float64(values[j])
        sums[j - whole] += x * x
    return sums.sum()


@compiled
def _coalesce(rows: Array, values: Array) -> tuple[Array, Array]:
    order = np.argsort(rows, kind="mergesort")  # keeps the order of equal rows
    found, sums = np.empty_like(rows), np.empty_like(values)
    count = 0
    for k in order:
        if count == 0 or found[count - 1] != rows[k]:
            found[count] = rows[k]
            sums[count] = values[k]
            count += 1
        else:
            for j in range(values.shape[1]):
                sums[count - 1, j] += values[k, j]
    return found[:count], sums[:count]
