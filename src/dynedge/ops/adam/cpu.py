"""adam on a CPU by numba: each number is read, updated and written in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from dynedge.ops.adam import reference
from dynedge.ops.adam.reference import BETA1, BETA2, EPSILON, DenseUpdate
from dynedge.ops.gather_matmul import ALLOW_FMA
from dynedge.utils.array_type import Array
from dynedge.utils.numba_compile import compiled

ZERO = {torch.float32: np.float32(0), torch.float64: np.float64(0)}
LANES = 16  # separate sums, so that the loop is vectorised


def dense_steps(updates: Sequence[DenseUpdate], scale: Tensor) -> None:
    updates = [update._replace(grad=update.grad.contiguous()) for update in updates]
    for kind, same in groupby(updates, _kind):
        if kind is None:
            reference.dense_steps(list(same), scale)
        else:
            _dense_steps(kind, list(same), scale.item())


def _kind(update: DenseUpdate) -> torch.dtype | None:
    """None if the parameter is not contiguous."""
    value, _, mean, square, *_ = update
    return value.dtype if value.is_contiguous() and mean.is_contiguous() and square.is_contiguous() else None


def _dense_steps(kind: torch.dtype, updates: list[DenseUpdate], scale: float) -> None:
    sizes = [update.value.numel() for update in updates]
    addresses = [[tensor.data_ptr() for tensor in update] for update in updates]
    _dense_steps_at(ZERO[kind], scale, np.array(sizes), np.array(addresses))


def row_step(
    value: Tensor, rows: Tensor, grad: Tensor, mean: Tensor, square: Tensor, steps: Tensor, lr: Tensor, scale: Tensor
) -> None:
    if not len(rows):
        return
    tables = (tensor.detach().view(len(tensor), -1).numpy() for tensor in (value, mean, square))
    values = grad.detach().contiguous().view(len(rows), -1).numpy()
    _row_step(rows.numpy(), values, *tables, steps.numpy(), lr.item(), scale.item())


def coalesce(grad: Tensor) -> Tensor:
    if grad.sparse_dim() != 1 or grad.dense_dim() != 1:
        return reference.coalesce(grad)
    rows, values = _coalesce(grad._indices()[0].numpy(), grad._values().contiguous().numpy())
    indices = torch.from_numpy(rows)[None]
    return torch.sparse_coo_tensor(
        indices, torch.from_numpy(values), grad.shape, check_invariants=False, is_coalesced=True
    )


def sum_of_squares(grads: Sequence[Tensor]) -> Tensor:
    total = 0.0
    for kind, same in groupby(grads, lambda grad: grad.dtype):
        whole = [grad.contiguous() for grad in same]
        sizes, addresses = [grad.numel() for grad in whole], [grad.data_ptr() for grad in whole]
        total = _sum_of_squares_at(ZERO[kind], np.array(sizes), np.array(addresses), total)
    return torch.tensor(total, dtype=torch.float64)


# A window updates a dozen small parameters. They are passed by address and all at once, because a call for each, with
# its tensors as arrays, would take longer than the step itself.


@intrinsic
def _pointer(_: Any, address: Any, like: Any) -> Any:
    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(types.int64, like), generate


@compiled
def _dense_steps_at(like: Any, scale: float, sizes: Array, addresses: Array) -> None:
    """addresses [parameters, 6]: of the fields of `DenseUpdate`."""
    for k in range(len(sizes)):
        steps = numba.carray(_pointer(addresses[k, 4], np.int64(0)), 1)
        lr = numba.carray(_pointer(addresses[k, 5], np.float64(0)), 1)[0]
        steps[0] += 1
        count = float(steps[0])
        _dense_step(
            numba.carray(_pointer(addresses[k, 0], like), sizes[k]),
            numba.carray(_pointer(addresses[k, 1], like), sizes[k]),
            numba.carray(_pointer(addresses[k, 2], like), sizes[k]),
            numba.carray(_pointer(addresses[k, 3], like), sizes[k]),
            scale,
            lr / (1 - math.pow(BETA1, count)),
            1 / (1 - math.pow(BETA2, count)),
        )


@compiled
def _sum_of_squares_at(like: Any, sizes: Array, addresses: Array, total: float) -> float:
    for k in range(len(sizes)):
        total += _sum_of_squares(numba.carray(_pointer(addresses[k], like), sizes[k]))
    return total


@compiled(fastmath=ALLOW_FMA, error_model="numpy")
def _dense_step(
    value: Array, grad: Array, mean: Array, square: Array, scale: float, lr: float, square_scale: float
) -> None:
    """lr is the learning rate over 1 − β1^t, square_scale is 1 / (1 − β2^t)."""
    kind = value.dtype.type
    grad_scale, step_size, correction = kind(scale), kind(lr), kind(square_scale)
    beta1, beta2 = kind(BETA1), kind(BETA2)
    weight1, weight2, epsilon = kind(1 - BETA1), kind(1 - BETA2), kind(EPSILON)
    for j in range(len(value)):
        g = grad[j] * grad_scale
        m = beta1 * mean[j] + weight1 * g
        v = beta2 * square[j] + weight2 * (g * g)
        mean[j], square[j] = m, v
        value[j] -= step_size * m / (np.sqrt(v * correction) + epsilon)


@compiled
def _row_step(
    rows: Array, grad: Array, value: Array, mean: Array, square: Array, steps: Array, lr: float, scale: float
) -> None:
    for k in range(len(rows)):
        r = rows[k]
        steps[r] += 1
        rate, square_scale = lr / (1 - BETA1 ** steps[r]), 1 / (1 - BETA2 ** steps[r])
        _dense_step(value[r], grad[k], mean[r], square[r], scale, rate, square_scale)


@compiled
def _sum_of_squares(values: Array) -> float:
    """In float64, in LANES sums: whole groups of lanes first, then the rest."""
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
    order = np.argsort(rows, kind="mergesort")  # stable
    unique, sums = np.empty_like(rows), np.empty_like(values)
    count = 0
    for k in order:
        if count == 0 or unique[count - 1] != rows[k]:
            unique[count] = rows[k]
            sums[count] = values[k]
            count += 1
        else:
            for j in range(values.shape[1]):
                sums[count - 1, j] += values[k, j]
    return unique[:count], sums[:count]
