"""adam on a CPU: each number is read, moved and written in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dynedge.ops.adam.reference import BETA1, BETA2, EPSILON
from dynedge.ops.products import FUSE

Array = npt.NDArray[Any]

LANES = 16  # sums kept apart, so that they run as vector instructions


def dense_step(
    value: Tensor, grad: Tensor, mean: Tensor, square: Tensor, count: int, lr: float, scale: Tensor
) -> None:
    factors = scale.item(), lr / (1 - BETA1**count), 1 / (1 - BETA2**count)
    _dense(*(_flat(tensor) for tensor in (value, grad, mean, square)), *factors)


def row_step(
    value: Tensor, rows: Tensor, grad: Tensor, mean: Tensor, square: Tensor, steps: Tensor, lr: float, scale: Tensor
) -> None:
    if not len(rows):
        return
    tables = (tensor.detach().view(len(tensor), -1).numpy() for tensor in (value, mean, square))
    values = grad.detach().contiguous().view(len(rows), -1).numpy()
    _rows(rows.numpy(), values, *tables, steps.numpy(), lr, scale.item())


def square_sum(grads: Sequence[Tensor]) -> Tensor:
    return torch.tensor(sum(_squares(_flat(grad)) for grad in grads), dtype=torch.float64)


def _flat(tensor: Tensor) -> Array:
    array: Array = tensor.detach().numpy()
    return array.reshape(-1)


@numba.njit(nogil=True, cache=True, fastmath=FUSE, error_model="numpy")
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


@numba.njit(nogil=True, cache=True)
def _rows(
    rows: Array, grad: Array, value: Array, mean: Array, square: Array, steps: Array, lr: float, scale: float
) -> None:
    for k in range(len(rows)):
        r = rows[k]
        steps[r] += 1
        own, young = lr / (1 - BETA1 ** steps[r]), 1 / (1 - BETA2 ** steps[r])
        _dense(value[r], grad[k], mean[r], square[r], scale, own, young)


@numba.njit(nogil=True, cache=True)
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
