"""Reference implementation in plain PyTorch, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class DenseUpdate(NamedTuple):
    """A whole parameter to update; the last two are scalars on its device."""

    value: Tensor
    grad: Tensor
    mean: Tensor
    square: Tensor
    steps: Tensor  # int64: how often it was updated before
    lr: Tensor  # float64


def dense_steps(updates: Sequence[DenseUpdate], scale: Tensor) -> None:
    for update in updates:
        update.steps.add_(1)
        dense_step(*update, scale)


def dense_step(
    value: Tensor, grad: Tensor, mean: Tensor, square: Tensor, steps: Tensor, lr: Tensor, scale: Tensor
) -> None:
    count = int(steps)
    grad = grad * scale.to(grad.dtype)
    mean.lerp_(grad, 1 - BETA1)
    square.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
    root = (square / (1 - BETA2**count)).sqrt_().add_(EPSILON)
    value.addcdiv_(mean, root, value=-lr.item() / (1 - BETA1**count))


def row_step(
    value: Tensor, rows: Tensor, grad: Tensor, mean: Tensor, square: Tensor, steps: Tensor, lr: Tensor, scale: Tensor
) -> None:
    grad, count = grad * scale.to(grad.dtype), steps[rows] + 1
    means = mean[rows].lerp_(grad, 1 - BETA1)
    squares = square[rows].mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
    mean[rows], square[rows], steps[rows] = means, squares, count
    shape = (-1, *[1] * (value.dim() - 1))
    correction1 = (1 - BETA1 ** count.double()).to(grad).view(shape)  # bias corrections
    correction2 = (1 - BETA2 ** count.double()).to(grad).view(shape)
    update = (means / correction1).div_((squares / correction2).sqrt_().add_(EPSILON)).mul_(-lr.to(grad))
    value[rows] = value[rows].add_(update)


def coalesce(grad: Tensor) -> Tensor:
    return grad.coalesce()


def sum_of_squares(grads: Sequence[Tensor]) -> Tensor:
    norms = torch.stack([torch.linalg.vector_norm(grad, dtype=torch.float64) for grad in grads])
    return norms.square().sum()
