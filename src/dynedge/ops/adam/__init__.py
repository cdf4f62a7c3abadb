"""adam: one Adam step, of whole parameters or of some rows of a table, where each row counts its own steps.

    mean += (1 − β1)(g − mean)    square += (1 − β2)(g² − square)    g is the gradient times `scale`
    value −= lr · (mean / (1 − β1^t)) / (√(square / (1 − β2^t)) + ε)

t counts the steps of the parameter, or of the row. Everything is updated in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from dynedge.ops.adam import cpu, reference
from dynedge.ops.adam.reference import DenseUpdate
from dynedge.ops.dispatch import prefer_triton

__all__ = ["DenseUpdate", "clip_scale", "coalesce", "coalesce_all", "dense_steps", "row_step"]

TRITON = "dynedge.ops.adam.triton"
DENSE_BY_DEVICE: dict[str, Callable[..., None]] = {
    "cpu": cpu.dense_steps,
    "cuda": prefer_triton(TRITON, "dense_steps", reference.dense_steps, lambda updates, _: updates[0].value),
}
ROWS_BY_DEVICE: dict[str, Callable[..., None]] = {
    "cpu": cpu.row_step,
    "cuda": prefer_triton(TRITON, "row_step", reference.row_step),
}
COALESCE_BY_DEVICE: dict[str, Callable[..., Tensor]] = {
    "cpu": cpu.coalesce,
    "cuda": prefer_triton(TRITON, "coalesce", reference.coalesce),
}
SQUARES_BY_DEVICE: dict[str, Callable[..., Tensor]] = {"cpu": cpu.sum_of_squares}


def _coalesce_each(grads: Sequence[Tensor]) -> list[Tensor]:
    return [coalesce(grad) for grad in grads]


def _clip_scale(grads: Sequence[Tensor], max_norm: float, more: float) -> tuple[Tensor, Tensor]:
    total = SQUARES_BY_DEVICE.get(grads[0].device.type, reference.sum_of_squares)(grads) + more
    return total, (max_norm / (total.sqrt() + 1e-6)).clamp_(max=1.0)


COALESCE_ALL_BY_DEVICE: dict[str, Callable[..., list[Tensor]]] = {
    "cuda": prefer_triton(TRITON, "coalesce_all", _coalesce_each, lambda grads: grads[0]),
}
CLIP_BY_DEVICE: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "cuda": prefer_triton(TRITON, "clip_scale", _clip_scale, lambda grads, *_: grads[0]),
}


def dense_steps(updates: Sequence[DenseUpdate], scale: Tensor) -> None:
    """One step of each parameter, which is counted; `scale` is a scalar on their device."""
    if updates:
        DENSE_BY_DEVICE.get(updates[0].value.device.type, reference.dense_steps)(updates, scale)


def row_step(
    value: Tensor, rows: Tensor, grad: Tensor, mean: Tensor, square: Tensor, steps: Tensor, lr: Tensor, scale: Tensor
) -> None:
    """One step of the rows int64[q], each once, of a table [N, ...], whose gradients are `grad` [q, ...].

    steps int32[N] counts the steps of each row.
    """
    ROWS_BY_DEVICE.get(value.device.type, reference.row_step)(value, rows, grad, mean, square, steps, lr, scale)


def coalesce(grad: Tensor) -> Tensor:
    """Returns a sparse gradient with each row once, in order; repeated rows are summed in the order they come.

    On a GPU rows may still repeat, which saves waiting for their number: the first then has the sum, the rest zeros.
    """
    return grad if grad.is_coalesced() else COALESCE_BY_DEVICE.get(grad.device.type, reference.coalesce)(grad)


def coalesce_all(grads: Sequence[Tensor]) -> list[Tensor]:
    """`coalesce` of each, on a GPU of small ones together."""
    if all(grad.is_coalesced() for grad in grads):
        return list(grads)
    return COALESCE_ALL_BY_DEVICE.get(grads[0].device.type, _coalesce_each)(grads)


def clip_scale(grads: Sequence[Tensor], max_norm: float, more: float = 0.0) -> tuple[Tensor, Tensor]:
    """(sum of the squares of all numbers plus `more`, factor that clips their norm to max_norm), float64 scalars."""
    return CLIP_BY_DEVICE.get(grads[0].device.type, _clip_scale)(grads, max_norm, more)
